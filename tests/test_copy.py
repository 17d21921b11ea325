"""Copies of stores: closed, crashed and in use, whole and in part, interrupted and continued."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

import goldens
import rmqstore
from crash.faults import Cut, FaultyDisk
from rmqstore.copying import checks, copier
from rmqstore.copying.copier import _Copier, copy
from rmqstore.errors import (
    CorruptRecordError,
    Finding,
    OptionError,
    StoreLockedError,
    StoreStateError,
    UnsupportedFeatureError,
)
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.store_config import StoreConfig

SIZES = StoreConfig(16384, 400, max_hash_slot_num=100, max_index_num=100)
COMMITS = ".rmqstore/commits"
OWN = {"lock", "abort"}


def contents(root: Path) -> dict[str, bytes]:
    """Return all files of a store by name, but those of who has it open, and notes of ours.

    The history of commits is one of the files.
    """
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    names = {path.relative_to(root).as_posix(): path for path in files}
    return {
        name: path.read_bytes()
        for name, path in names.items()
        if name not in OWN and (not name.startswith(".rmqstore/") or name == COMMITS)
    }


def messages(root: Path, **arguments: Any) -> list[dict[str, Any]]:
    with rmqstore.open(root) as store:
        return store.scan(**arguments).read_all().to_pylist()


def rows(n: int, topic: str = "T", first: int = 0) -> pa.RecordBatch:
    keys = [f"k{number}" for number in range(first, first + n)]
    return pa.RecordBatch.from_pydict(
        {"topic": [topic] * n, "body": [b"x" * 300] * n, "keys": keys}
    )


def closed_store(root: Path) -> Path:
    """Make a store with several files of each kind, which was closed."""
    with rmqstore.create(root, config=SIZES) as writer:
        for first in range(0, 300, 100):
            writer.append(rows(100, first=first))
            writer.append(rows(20, "U", first))
            writer.flush()
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return closed_store(tmp_path / "store")


CLOSED = sorted(
    (
        {*goldens.PLAIN, *goldens.OTHER_QUEUES, *goldens.NEWEST, *goldens.IN_ROCKSDB}
        | {*goldens.OF_GROUPS}
    )
    - {"default-sizes"}  # of gigabytes, see below
)
NOT_BUILT = ["crash4", "v55-crash4"]  # copies whose abort file was left out, without queues
CRASHED = sorted({*goldens.CRASHED, *goldens.NEWEST_CRASHED} - {*CLOSED, *NOT_BUILT})


def test_a_copy_goes_on_without_what_a_power_cut_took(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "NOTED_FILES", 4)
    whole = FaultyDisk()
    copy(root, tmp_path / "whole", disk=whole)
    expected = contents(tmp_path / "whole")
    noted = [at for at, done in enumerate(whole.done) if done == f"flush {checks.JOURNAL.name}"]
    for at in noted[1:4]:
        target = tmp_path / f"copy{at}"
        with pytest.raises(Cut):
            copy(root, target, disk=FaultyDisk(at + 1, random.Random(at)), verify=False)
        copy(root, target)
        assert contents(target) == expected


def test_a_file_that_becomes_shorter_meanwhile_leaves_no_bytes_of_another_place(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "_CHUNK_BYTES", 4096)
    (root / "abort").touch()  # its store is in use
    file = root / "timerlog" / f"{0:020d}"
    file.parent.mkdir()
    file.write_bytes(b"\1" * 10_000)

    class CutMeanwhile(FaultyDisk):
        def write(self, path: Path, position: int, data: Any) -> None:
            super().write(path, position, data)
            if path.parent.name == "timerlog":
                os.truncate(file, 6000)

    copy(root, tmp_path / "copy", disk=CutMeanwhile())
    copied = tmp_path / "copy" / "timerlog" / file.name
    assert copied.read_bytes() == b"\1" * 6000 + bytes(4000)


class Meanwhile(FaultyDisk):
    """Lets something happen when the first file of the configuration was made."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.actions = [action]

    def create(self, path: Path, size: int, content: Any = None) -> None:
        super().create(path, size, content)
        if path.parent.name == "config" and self.actions:
            self.actions.pop()()


@pytest.mark.parametrize("name", CLOSED)
def test_the_copy_of_a_closed_store_equals_it(name: str, tmp_path: Path) -> None:
    source, target = goldens.unpack(name, tmp_path), tmp_path / "copies" / name
    assert not (source / "abort").exists()
    target.parent.mkdir()
    copied = copy(source, target)
    with rmqstore.open(source) as store:
        assert copied.findings == (*verify(store),)
    assert not copied.left_out
    assert contents(target) == contents(source)
    assert messages(target, scan="commitlog") == messages(source, scan="commitlog")


@pytest.mark.parametrize("name", CRASHED)
def test_the_copy_of_a_crashed_store_is_valid(name: str, tmp_path: Path) -> None:
    source, target = goldens.unpack(name, tmp_path), tmp_path / "copies" / name
    before = contents(source)
    assert (source / "abort").exists()
    target.parent.mkdir()
    copied = copy(source, target, truncate=True)
    assert not copied.findings
    assert not (target / "abort").exists()
    assert contents(source) == before
    for scan in ("queue", "commitlog"):
        assert messages(target, scan=scan) == messages(source, scan=scan)


@pytest.mark.parametrize("name", NOT_BUILT)
def test_the_copy_of_a_closed_store_whose_queues_are_not_built_has_them(
    name: str, tmp_path: Path
) -> None:
    source, target = goldens.unpack(name, tmp_path), tmp_path / "copies" / name
    before = contents(source)
    assert not (source / "abort").exists()
    target.parent.mkdir()
    assert copy(source, target).findings == ()
    assert not (target / "abort").exists()
    assert contents(source) == before
    assert messages(target) == messages(source)
    in_files = {path.parent.name for path in (target / "consumequeue").glob("*/*")}
    assert in_files == {topic for topic, _ in goldens.queues(name)}


def test_a_store_that_cannot_be_repaired_is_not_copied_while_it_is_open(tmp_path: Path) -> None:
    source = goldens.unpack("dledger-crash", tmp_path)
    with pytest.raises(UnsupportedFeatureError, match="stop its broker first"):
        copy(source, tmp_path / "target")


def test_a_store_in_use_is_copied_up_to_what_is_committed(root: Path, tmp_path: Path) -> None:
    with rmqstore.open(root, "a") as writer:
        writer.append(rows(50, first=1000))
        writer.flush()
        writer.append(rows(50, first=2000))
        copied = copy(root, tmp_path / "copy")
        assert len(messages(tmp_path / "copy")) == 410
        assert len(messages(tmp_path / "copy", scan="commitlog")) == 410
    assert not copied.findings
    with rmqstore.open(tmp_path / "copy") as store:
        assert len([*store.query("T", "k1049")]) == 1


def test_old_files_are_left_out_whole(root: Path, tmp_path: Path) -> None:
    times = sorted(row["storeTimestamp"] for row in messages(root, columns="storeTimestamp"))
    with rmqstore.open(root, "a") as writer:
        writer.append(rows(200, first=300))
    newest = messages(root, columns="storeTimestamp")[-1]["storeTimestamp"]
    copied = copy(root, tmp_path / "copy", since=newest)
    assert any("files of the log" in text for text in copied.left_out)
    assert any("files of queues" in text for text in copied.left_out)
    assert not copied.findings
    kept = messages(tmp_path / "copy")
    by_row = {row["commitLogOffset"]: row for row in messages(root)}
    assert all(by_row[row["commitLogOffset"]] == row | {"brokerName": "store"} for row in kept)
    assert sum(row["storeTimestamp"] >= newest for row in kept) == 200
    assert 200 <= len(kept) < len(by_row)
    assert times[0] < newest


def test_queues_of_other_topics_are_left_out_whole(root: Path, tmp_path: Path) -> None:
    copied = copy(root, tmp_path / "copy", topics=["U"])
    assert copied.left_out == ("the queues of 1 topics in consumequeue",)
    assert not copied.findings
    with rmqstore.open(tmp_path / "copy") as store:
        assert store.topics() == ["U"]
        assert store.parts.store_queues.known_topics() == ["U"]
        assert store.scan(columns="body").read_all().num_rows == 60
    assert len(messages(tmp_path / "copy", scan="commitlog")) == 360
    with rmqstore.open(root, "a") as writer:
        writer.append(rows(10))
        copy(root, tmp_path / "of_open", topics="U")
    with rmqstore.open(tmp_path / "of_open") as store:
        assert store.topics() == ["U"]


def test_a_copy_is_made_in_a_new_folder_outside_of_stores(root: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    other = Path(shutil.copytree(root, tmp_path / "other"))
    in_other = f"lies in a store .{other}.: choose another"
    for target, text in (
        (tmp_path / "copy", "exists already"), (tmp_path / "none" / "copy", "no folder"),
        (root / "copy", "lies in the store"), (other / "copy", in_other),
        (other / "commitlog" / "copy", in_other),
    ):  # fmt: skip
        with pytest.raises(StoreStateError, match=text):
            copy(root, target)


def test_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere" / "secret"
    secret.parent.mkdir()
    secret.write_text("secret")
    (root / "config" / "link.json").symlink_to(secret)
    (root / "linked").symlink_to(tmp_path)
    (root / "consumequeue" / "T" / "9").symlink_to(secret.parent)
    (root / "index" / "1").symlink_to(secret)
    (root / "consumequeue" / "T" / ".DS_Store").write_text("finder")
    copied = copy(root, tmp_path / "copy")
    assert len([text for text in copied.left_out if "a symbolic link" in text]) == 4
    assert not any(b"secret" in content for content in contents(tmp_path / "copy").values())


def test_a_copy_is_as_sparse_as_its_source(tmp_path: Path) -> None:
    """Its files have a gigabyte, most of which was never written."""
    source = goldens.unpack("default-sizes", tmp_path)
    (tmp_path / "copy").mkdir()
    copy(source, tmp_path / "copy" / "default-sizes")
    for scan in ("queue", "commitlog"):
        of_copy = messages(tmp_path / "copy" / "default-sizes", scan=scan)
        assert of_copy == messages(source, scan=scan)
    on_disk = sum(path.stat().st_blocks for path in (tmp_path / "copy").rglob("*"))
    assert on_disk * 512 < 8 << 20


@pytest.mark.parametrize("is_open", [False, True])
def test_a_copy_goes_on_where_it_was_killed(root: Path, tmp_path: Path, *, is_open: bool) -> None:
    if is_open:
        (root / "abort").write_text("1")
    whole = FaultyDisk()
    copy(root, tmp_path / "whole", disk=whole)
    expected = contents(tmp_path / "whole")
    step = max(whole.n_changes // 40, 1)
    for number, at in enumerate(range(0, whole.n_changes, step)):
        target = tmp_path / f"copy{number}"
        with pytest.raises(Cut):
            copy(root, target, disk=FaultyDisk(at))
        if not target.exists():
            copy(root, target)
        assert messages(target, scan="queue") == [
            row | {"brokerName": target.name} for row in messages(root)
        ]
        if not is_open:
            assert contents(target) == expected
        shutil.rmtree(target)


def test_what_was_copied_is_not_copied_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = FaultyDisk()
    copy(root, tmp_path / "whole", disk=whole)
    renamed = next(number for number, what in enumerate(whole.done) if what.startswith("rename"))
    with pytest.raises(Cut):
        copy(root, tmp_path / "copy", disk=FaultyDisk(renamed))
    created = list[str]()
    disk = FaultyDisk()
    create = disk.create
    monkeypatch.setattr(
        disk, "create", lambda path, *args: (created.append(path.name), create(path, *args))
    )
    copy(root, tmp_path / "copy", disk=disk)
    assert not created


def test_an_unfinished_copy_of_another_store_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(Cut):
        copy(root, tmp_path / "copy", disk=FaultyDisk(30))
    shutil.copytree(root, tmp_path / "other")
    with pytest.raises(StoreStateError, match="unfinished copy"):
        copy(tmp_path / "other", tmp_path / "copy")


@pytest.mark.parametrize("closes", [False, True])
def test_a_store_that_is_opened_meanwhile_is_copied_again(
    root: Path, tmp_path: Path, *, closes: bool
) -> None:
    writers = []

    def write() -> None:
        writers.append(rmqstore.open(root, "a"))
        writers[0].append(rows(30, first=5000))
        writers[0].flush()
        if closes:
            writers[0].close()

    copied = copy(root, tmp_path / "copy", disk=Meanwhile(write))
    assert not copied.findings
    assert len(messages(tmp_path / "copy")) == 390
    if closes:
        assert contents(tmp_path / "copy") == contents(root)
    writers[0].close()


def test_tiered_storage_alone_is_not_copied(tmp_path: Path) -> None:
    tier = goldens.unpack("tiered", tmp_path) / "tieredstore"
    with pytest.raises(UnsupportedFeatureError, match="a copy is not supported with tiered"):
        copy(tier, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["basic", "crash", "dledger"])
def test_a_store_in_another_file_system_is_copied(name: str, tmp_path: Path) -> None:
    source = goldens.unpack(name, tmp_path / "far")
    (tmp_path / "near").mkdir()
    target = tmp_path / "near" / name
    copied = copy(
        f"far://{name}", target, filesystem=SubTreeFileSystem(str(source.parent), LocalFileSystem())
    )
    assert not copied.findings
    for scan in ("queue", "commitlog"):
        assert messages(target, scan=scan) == messages(source, scan=scan)


@pytest.mark.parametrize("name", ["live", "v55-live-lite"])
def test_files_with_bytes_anywhere_are_copied_whole_from_another_file_system(
    name: str, tmp_path: Path
) -> None:
    source = goldens.unpack(name, tmp_path / "far")
    far = SubTreeFileSystem(str(source.parent), LocalFileSystem())
    copied = copy(f"far://{name}", tmp_path / "copy", filesystem=far)
    assert not copied.findings
    wheel = (source / "timerwheel").read_bytes()
    assert wheel.strip(b"\0")
    assert (tmp_path / "copy" / "timerwheel").read_bytes() == wheel


def test_an_index_with_few_keys_is_copied_from_another_file_system(tmp_path: Path) -> None:
    source, far = tmp_path / "far" / "store", SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    sizes = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1 << 20, "maxIndexNum": 1 << 19}
    with rmqstore.create(source, config=StoreConfig().updated(sizes)) as writer:
        keys = [f"k{number}" for number in range(20)]
        writer.append(pa.record_batch({"topic": ["T"] * 20, "body": [b"x"] * 20, "keys": keys}))
    copied = copy("far://far/store", tmp_path / "copy", filesystem=far)
    assert not copied.findings
    (index,) = (source / "index").iterdir()
    assert (tmp_path / "copy" / "index" / index.name).read_bytes() == index.read_bytes()


def test_good_records_after_damage_are_not_dropped_without_a_word(tmp_path: Path) -> None:
    source = goldens.unpack("crash2", tmp_path)
    with pytest.raises(CorruptRecordError, match="54 good records follow"):
        copy(source, tmp_path / "copy")
    copied = copy(source, tmp_path / "copy", truncate=True)
    assert "54 good records after damage of the log" in copied.left_out


def test_a_folder_that_is_no_unfinished_copy_is_left_alone(root: Path, tmp_path: Path) -> None:
    partial = tmp_path / "thesis.partial"
    partial.mkdir()
    (partial / "thesis.txt").write_text("mine")
    (tmp_path / "linked.partial").symlink_to(partial)
    for name in ("thesis", "linked"):
        with pytest.raises(StoreStateError, match="is not an unfinished copy"):
            copy(root, tmp_path / name)
    assert [path.name for path in partial.iterdir()] == ["thesis.txt"]


def test_an_unfinished_copy_is_not_copied_onto_itself(root: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(root, tmp_path / "t.partial"))
    with pytest.raises(StoreStateError, match="lies in the store that is copied"):
        copy(source, tmp_path / "t")
    assert contents(source) == contents(root)


def test_a_wrong_argument_leaves_nothing_behind(root: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="does not have the topic V; it has T, U"):
        copy(root, tmp_path / "copy", topics=["V"])
    with pytest.raises(OptionError):
        copy(root, tmp_path / "copy", storage_options={"region": "x"})
    with pytest.raises(OptionError, match=r"\*\*\*"):
        copy("s3://KEY:SECRET@bucket/x", tmp_path / "copy")
    assert not (tmp_path / "copy.partial").exists()
    assert copy(root, tmp_path / "copy").n_files


def test_two_copies_do_not_grow_in_one_folder(root: Path, tmp_path: Path) -> None:
    def copy_again() -> None:
        with pytest.raises(StoreLockedError, match="another call makes this copy"):
            copy(root, tmp_path / "copy")

    copy(root, tmp_path / "copy", disk=Meanwhile(copy_again))


def test_a_clock_that_was_set_back_costs_no_message(tmp_path: Path) -> None:
    """Files are left out by all of their store times, and one without records has none."""
    with rmqstore.create(tmp_path / "s", config=SIZES) as writer:
        writer.append(rows(200))
    newest = max((tmp_path / "s" / "commitlog").iterdir())
    following = newest.with_name(f"{int(newest.name) + 16384:020d}")
    following.write_bytes(bytes(16384))
    start = messages(tmp_path / "s", columns="storeTimestamp")[0]["storeTimestamp"]
    copied = copy(tmp_path / "s", tmp_path / "copy", since=start)
    assert not copied.left_out
    assert len(messages(tmp_path / "copy")) == 200
    second = sorted((tmp_path / "s" / "commitlog").iterdir())[1]
    changed = bytearray(second.read_bytes())
    changed[56:64] = (1000).to_bytes(8, "big")  # the store time of its first record, ms
    second.write_bytes(changed)
    copied = copy(tmp_path / "s", tmp_path / "of_clock", since=start)
    assert not copied.left_out


def test_a_log_elsewhere_is_copied_once(root: Path, tmp_path: Path, monkeypatch: Any) -> None:
    shutil.move(root / "commitlog", root / "log2")
    monkeypatch.chdir(tmp_path)
    copy("store", "copy", commitlogs=["store/log2"])
    assert not (tmp_path / "copy" / "log2").exists()
    assert len(messages(tmp_path / "copy")) == 360


def _with_database(root: Path) -> Path:
    folder = root / "rocksdbstore"
    folder.mkdir()
    for name in ("CURRENT", "MANIFEST-000005", "000009.sst", "000010.log", "LOG"):
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.mark.parametrize(
    ("changed", "n_changes"),
    [
        ("MANIFEST-000005", 0),
        ("MANIFEST-000005", 2),
        ("MANIFEST-000005", 99),
        ("CURRENT", 2),
        ("000009.sst", 2),
        ("000011.blob", 2),
    ],
)
def test_tables_that_change_are_copied_again_or_left_out(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, n_changes: int
) -> None:
    folder = _with_database(root)
    copy_file, changes = _Copier._copy_file, iter(range(n_changes))

    def copy_and_change(copier: Any, store: Any, file: Any) -> None:
        copy_file(copier, store, file)
        if file.name.endswith("MANIFEST-000005"):
            with (folder / "000010.log").open("ab") as log:
                log.write(b"more")
            for number in islice(changes, 1):
                with (folder / changed).open("ab") as table:
                    table.write(b"%d" % number)

    monkeypatch.setattr(_Copier, "_copy_file", copy_and_change)
    with rmqstore.open(root, "a"):
        copied = copy(root, tmp_path / "copy")
    there = contents(tmp_path / "copy")
    if n_changes < 99:
        for table in folder.iterdir():
            if not table.name.endswith(".log"):  # a part of which is as good as all of it
                assert there[f"rocksdbstore/{table.name}"] == table.read_bytes()
        assert not copied.left_out
    else:
        assert not any(name.startswith("rocksdbstore") for name in there)
        assert "whose tables changed each time" in copied.left_out[0]
    assert messages(tmp_path / "copy", scan="commitlog")


def test_findings_name_the_copy_by_the_name_that_it_gets(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(store: rmqstore.MessageStore, _progress: Any) -> list[Finding]:
        return [Finding("log", f"{store.paths.root}/commitlog/1", f"in {store.paths.root}")]

    monkeypatch.setattr(checks, "verify", found)
    (finding,) = copy(root, tmp_path / "copy").findings
    assert finding == Finding("log", f"{tmp_path}/copy/commitlog/1", f"in {tmp_path}/copy")


@pytest.mark.parametrize("verify", [True, False])
def test_progress_ends_at_its_total(root: Path, tmp_path: Path, *, verify: bool) -> None:
    steps: list[tuple[int, int]] = []
    copy(root, tmp_path / "copy", verify=verify, progress=lambda *step: steps.append(step))
    assert steps[-1][0] == steps[-1][1] > 0


def test_a_torn_file_of_the_configuration_is_read_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = root / "config" / "subscriptionGroup.json"
    whole = b'{"subscriptionGroupTable":{1:{}}}'
    path.write_bytes(whole[:20])
    # Threads of other tests sleep too, so the module gets a clock of its own.
    clock = SimpleNamespace(sleep=lambda _: path.write_bytes(whole))
    monkeypatch.setattr(checks, "time", clock)
    copy(root, tmp_path / "copy")
    assert contents(tmp_path / "copy")["config/subscriptionGroup.json"] == whole
    clock.sleep = lambda _: None
    path.write_bytes(whole[:20])
    copy(root, tmp_path / "other")
    assert "subscriptionGroup.json is not JSON that a broker writes" in caplog.text
    assert contents(tmp_path / "other")["config/subscriptionGroup.json"] == whole[:20]


def test_an_unfinished_copy_with_another_log_is_refused(root: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    (root / "commitlog").rename(moved)
    with pytest.raises(Cut):
        copy(root, tmp_path / "copy", disk=FaultyDisk(20), commitlogs=[str(moved)])
    shutil.copytree(moved, tmp_path / "another")
    with pytest.raises(StoreStateError, match="finish that one with the same arguments"):
        copy(root, tmp_path / "copy", commitlogs=[str(tmp_path / "another")])
    copy(root, tmp_path / "copy", commitlogs=[str(moved)])
