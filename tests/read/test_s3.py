"""Stores in S3, read over HTTP from a server."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import command_line
import rmqstore
import store_builder as build
import tiers
from goldens import Golden
from reading import read
from remote_reads import ASKED, Ask, answer
from rmqstore import OffsetOutOfRangeError, OptionError, UnsupportedFeatureError
from rmqstore.errors import RemoteReadError
from rmqstore.storage.files.remote_location import local_path
from s3_server import BUCKET, KEYS, S3Server

NAMES = [
    "basic", "edges", "batch-cq", "cq-ext", "crash", "dledger-mixed", "lmq", "expired",
    "rocksdb-cq", "controller", "compressed", "empty",
]  # fmt: skip


@pytest.mark.parametrize(("name", "ask"), tiers.spread(5, NAMES, ASKED))
def test_s3_gives_what_the_disk_gives(
    golden_store: Golden, s3: S3Server, name: str, ask: Ask
) -> None:
    root = golden_store(name)
    expected = answer(lambda: rmqstore.open(root), ask, root)
    uri = s3.upload(root)
    found = answer(lambda: rmqstore.open(uri, storage_options=s3.options), ask, uri)
    assert found == expected


def _built(folder: Path, n_records: int = 20, body: bytes = b"x" * 40_000) -> Path:
    times = range(build.T0, build.T0 + n_records)
    records = (build.Record(body=body, store_timestamp=time) for time in times)
    return build.filled(records, segment_bytes=1 << 22).write(folder)


def test_no_text_shows_a_secret(
    golden_store: Golden, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    uri = s3.upload(golden_store("one"))
    texts = []
    with rmqstore.open(uri, storage_options=s3.options) as store:
        texts += [repr(store), store._repr_html_(), repr(store.parts.paths)]
        assert len(read(store)) == 1
    with pytest.raises(rmqstore.NotAStoreError) as missing:
        rmqstore.open(f"s3://{BUCKET}/nothing", storage_options=s3.options)
    wrong = {**s3.options, "endpoint": "http://127.0.0.1:1", "connect_timeout": 0.2}
    with pytest.raises(RemoteReadError, match="listing s3://stores/one") as refused:
        rmqstore.open(uri, storage_options=wrong)
    with pytest.raises(OptionError, match="credentials do not belong in a URI") as in_uri:
        rmqstore.open(f"s3://name:{KEYS['secret_key']}@stores/one")
    texts += [str(error.value) for error in (missing, refused, in_uri)] + [caplog.text]
    assert uri in texts[0]
    assert "GETs of" in caplog.text
    for text in texts:
        assert not any(secret in text for secret in KEYS.values())


def test_a_store_in_s3_is_not_written_to(golden_store: Golden, s3: S3Server) -> None:
    uri = s3.upload(golden_store("one"))
    with pytest.raises(UnsupportedFeatureError, match="can be read, not written"):
        rmqstore.open(uri, "a")
    with pytest.raises(UnsupportedFeatureError, match="no store is made there"):
        rmqstore.create(f"s3://{BUCKET}/new")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("file:/a/b", "/a/b"), ("file:///a%20b", "/a b"), ("FILE://localhost/a", "/a"),
        ("file:/a#b", "/a#b"), (Path("file:///a"), "/a"), ("file:a", "file:a"), ("a:b", "a:b"),
        (Path("/a%20b"), Path("/a%20b")), ("s3://bucket/a", "s3://bucket/a"),
    ],
)  # fmt: skip
def test_a_file_uri_has_an_absolute_path(path: str | Path, expected: str | Path) -> None:
    assert local_path(path) == expected


def test_a_file_of_another_computer_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="file://data/a: a file of another computer"):
        local_path("file://data/a")


@pytest.mark.parametrize("by_log", [True, False])
@pytest.mark.parametrize("how", ["replaced", "deleted", "not listed any more"])
@pytest.mark.parametrize("fails", [True, False])
def test_an_object_that_goes_before_its_first_range_is_data_loss(
    tmp_path: Path, s3: S3Server, fails: bool, how: str, by_log: bool
) -> None:
    uri = s3.upload(_built(tmp_path / f"first-{fails}-{how}-{by_log}", 250))
    with rmqstore.open(uri, storage_options=s3.options) as store:
        reader = store.scan(scan="commitlog" if by_log else "queue", fail_on_data_loss=fails)
        last = store.parts.log.segments[-1].file
        with store.parts.paths.storage.open(last):  # as planning does
            pass
        if how == "replaced":
            s3.put(last.removeprefix("s3://"), bytes(1 << 22))
        else:
            s3.filesystem.delete_file(last.removeprefix("s3://"))
        if how == "not listed any more":
            store.parts.log.close()
            store.parts.paths.storage.refresh()
        if fails:
            with pytest.raises(OffsetOutOfRangeError, match=r"was (deleted|replaced)|are gone"):
                reader.read_all()
        else:
            assert reader.read_all().num_rows == 208


def test_local_and_remote_stores_are_read_together(golden_store: Golden, s3: S3Server) -> None:
    local, remote = golden_store("one"), s3.upload(golden_store("basic"))
    brokers = {"a": str(local), "b": remote}
    with rmqstore.open(brokers, storage_options=s3.options) as cluster:
        n_rows = cluster.scan().read_all().num_rows
    with rmqstore.open(local) as one, rmqstore.open(golden_store("basic")) as basic:
        assert n_rows == one.scan().read_all().num_rows + basic.scan().read_all().num_rows
    options = [f"--storage-option={name}={value}" for name, value in s3.options.items()]
    found = command_line.rows("stat", "--brokers", json.dumps(brokers), *options)
    assert {row["brokerName"] for row in found} == {"a", "b"}
    with pytest.raises(OptionError, match="'nope' is not an option"):
        rmqstore.open({"b": remote, "a": str(local)}, storage_options={"nope": "1"})


def test_a_log_that_was_extended_is_read_on(tmp_path: Path, s3: S3Server) -> None:
    root = _built(tmp_path / "extended", 10)
    uri = s3.upload(root)
    with rmqstore.open(uri, storage_options=s3.options) as store:
        assert store.count() == 10
        longer = _built(tmp_path / "longer", 20)
        for path in sorted(path for path in longer.rglob("*") if path.is_file()):
            s3.put(f"{BUCKET}/extended/{path.relative_to(longer)}", path.read_bytes())
        store.refresh()
        assert len(read(store)) == 20


def test_the_command_line_reads_a_uri(golden_store: Golden, s3: S3Server) -> None:
    uri = s3.upload(golden_store("basic"))
    options = [f"--storage-option={name}={value}" for name, value in s3.options.items()]
    for verb in ("stat", "verify"):
        shown = command_line.run(verb, uri, *options)
        assert shown.exit_code == 0, shown.output
    assert "can be read, not written" in command_line.refusal("rebuild", uri, *options)


@pytest.mark.parametrize("marked", ["", "/commitlog", "/consumequeue", "/consumequeue/T", "/index"])
def test_an_empty_object_with_the_name_of_a_folder_hides_nothing(
    s3: S3Server, tmp_path: Path, marked: str
) -> None:
    """Consoles and copiers make such objects beside those that begin with their name."""
    name = f"marked{marked.replace('/', '-')}"
    uri = s3.upload(_built(tmp_path / "s", 3, b"x"), name)
    s3.put(f"{BUCKET}/{name}{marked}", b"")
    with rmqstore.open(uri, storage_options=s3.options) as store:
        assert len(read(store)) == 3
