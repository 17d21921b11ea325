"""The façade: opening, filters, damage by mode, limits, errors; on stores built by hand."""

from __future__ import annotations

import html
import json
import pickle
import re
import shutil
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import documented
import rmqstore
import store_builder as build
from goldens import Golden
from reading import column, offsets, read
from rmqstore import (
    CorruptConfigError,
    CorruptQueueError,
    CorruptRecordError,
    MessageNotFoundError,
    NotAStoreError,
    OffsetOutOfRangeError,
    OptionError,
    RmqStoreError,
    UnsupportedFeatureError,
    errors,
)
from rmqstore.format.compression import decompress
from rmqstore.format.schema import ALL_COLUMNS


def _write(root: Path, *records: build.Record, tags: list[str] | None = None) -> build.Store:
    store = build.Store(segment_bytes=1 << 16)
    for row, record in enumerate(records):
        store.append(record, tags=tags[row] if tags else None)
    store.write(root)
    return store


def test_default_columns_come_in_the_documented_order_and_types(tmp_path: Path) -> None:
    _write(tmp_path / "s", build.Record())
    with rmqstore.open(tmp_path / "s") as store:
        schema = store.scan().schema
        permissive = store.scan(mode="PERMISSIVE", column_name_of_corrupt_record="_bad").schema
    assert schema.names == documented.DEFAULT
    assert permissive.names == [*documented.DEFAULT, "_bad"]
    kinds = {name: documented.ARROW[documented.COLUMNS[name].sql] for name in schema.names}
    assert {name: schema.field(name).type for name in schema.names} == kinds
    assert [*documented.COLUMNS] == ALL_COLUMNS.names


def test_a_path_without_a_log_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "group" / "dledger-n0" / "data").mkdir(parents=True)
    for path in (tmp_path, tmp_path / "missing", tmp_path / "group"):
        with pytest.raises(NotAStoreError, match=rf"{path}.*commitlog"):
            rmqstore.open(path)


def test_an_unknown_argument_of_open_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    _write(tmp_path / "s", build.Record())
    with pytest.raises(OptionError, match="unknown argument brokername: did you mean broker_name"):
        rmqstore.open(tmp_path / "s", brokername="b")
    with pytest.raises(
        OptionError,
        match=r"unknown argument log: there are .*commitlogs, conf, config, consumequeue",
    ):
        rmqstore.open(tmp_path / "s", mode="a", log="x")


def test_folders_may_lie_apart(tmp_path: Path) -> None:
    store = build.filled(build.Record(store_timestamp=build.T0 + number) for number in range(60))
    root = store.write(tmp_path / "s")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    for at, path in enumerate(sorted((root / "commitlog").iterdir())):
        path.rename(tmp_path / ("two", "one")[at % 2] / path.name)  # a broker begins with the other
    (root / "consumequeue").rename(tmp_path / "queues")
    folders = {
        "commitlogs": [str(tmp_path / "two"), str(tmp_path / "one")],
        "consumequeue": str(tmp_path / "queues"),
    }
    with rmqstore.open(root, **folders) as opened:
        expected = store.places
        assert offsets(read(opened)) == offsets(read(opened, scan="commitlog")) == expected
    with rmqstore.open(root, "a", **folders) as writer:
        writer.append(pa.table({"topic": ["T"], "body": ["next"]}))
    with rmqstore.open(root, **folders) as opened:
        assert len(read(opened)) == len(read(opened, scan="commitlog")) == len(expected) + 1


def test_tags_with_equal_hashes_are_distinguished(tmp_path: Path) -> None:
    tags = ["Aa", "BB", "Aa", "C", "BB", "AaAa", "BBBB", "AaBB"]
    records = [build.Record(properties=build.properties({"TAGS": tag})) for tag in tags]
    store = _write(tmp_path / "s", *records, build.Record(), tags=[*tags, ""])
    at = store.places
    with rmqstore.open(tmp_path / "s") as opened:
        for scan in ("queue", "commitlog"):
            assert offsets(read(opened, tags="Aa", scan=scan)) == [at[0], at[2]]
            assert offsets(read(opened, tags="BB||C", scan=scan)) == [at[1], at[3], at[4]]
            assert offsets(read(opened, tags="BBBB", scan=scan)) == [at[6]]
            assert offsets(read(opened, tags="nope", scan=scan)) == []
            assert len(read(opened, tags="*", scan=scan)) == 9


def test_unit_that_points_at_another_record_is_damage(tmp_path: Path) -> None:
    store = build.filled(build.Record(queue_id=number % 2) for number in range(4))
    one, other = store.queues["T", 0], store.queues["T", 1]
    one[1], other[1] = other[1], one[1]
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        with pytest.raises(CorruptRecordError, match="queue id is 1, not 0"):
            read(opened, assign={"T": [0]})
        assert len(read(opened, mode="DROPMALFORMED")) == 2
        warnings = [
            row["_corrupt_record"]
            for row in read(opened, mode="PERMISSIVE")
            if row["_corrupt_record"]
        ]
        assert len(warnings) == 2


def test_units_out_of_the_order_of_the_log_keep_the_order_of_their_queue(tmp_path: Path) -> None:
    """Never so in a real store, but nothing in the files forbids it."""
    store = build.Store()
    placed = [
        store.append(build.Record(queue_offset=at, body=b"x" * at), queued=False)
        for at in (2, 0, 1)
    ]
    units = {at.record.queue_offset: (at.physical_offset, at.size, 0) for at in placed}
    store.queues["T", 0] = [units[at] for at in range(3)]
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        assert [row["queueOffset"] for row in read(opened)] == [0, 1, 2]


def test_permissive_rows_fit_any_choice_of_columns(tmp_path: Path) -> None:
    store = _write(tmp_path / "s", build.Record(), build.Record(body_crc=1), build.Record())
    wide = [
        ("storeSize", pa.int64()), ("properties", pa.string()), ("body", pa.string()),
        ("bad", pa.string()),
    ]  # fmt: skip
    with rmqstore.open(tmp_path / "s") as opened:
        for scan in ("queue", "commitlog"):
            assert column(opened, "tags", mode="PERMISSIVE", scan=scan) == [None] * 3
            rows = read(
                opened, columns=pa.schema(wide), mode="PERMISSIVE", scan=scan,
                column_name_of_corrupt_record="bad",
            )  # fmt: skip
            assert [row["body"] for row in rows] == ["hello", None, "hello"]
            assert [row["bad"] is None for row in rows] == [True, False, True]
            assert rows[0]["storeSize"] == rows[2]["storeSize"] == store.placed[0].size


def test_corrupt_column_is_null_where_the_mode_never_fills_it(tmp_path: Path) -> None:
    _write(tmp_path / "s", build.Record())
    schema = pa.schema([("queueOffset", pa.int64()), ("_corrupt_record", pa.string())])
    with rmqstore.open(tmp_path / "s") as opened:
        assert read(opened, columns=schema) == [{"queueOffset": 0, "_corrupt_record": None}]


def test_damage_of_a_column_that_is_not_requested_is_found_all_the_same(tmp_path: Path) -> None:
    _write(tmp_path / "s", build.Record(body_crc=1))
    with rmqstore.open(tmp_path / "s") as opened, pytest.raises(CorruptRecordError):
        read(opened, columns="queueOffset")


def _bomb(codec: str, n_bytes: int) -> bytes:
    zeros = bytes(1 << 20)
    if codec == "zlib":
        packer = zlib.compressobj(9)
        return b"".join(packer.compress(zeros) for _ in range(n_bytes >> 20)) + packer.flush()
    if codec == "lz4":
        frame = pytest.importorskip("lz4.frame")
        return bytes(frame.compress(bytes(n_bytes)))
    packer = pytest.importorskip("zstandard").ZstdCompressor().compressobj()
    return b"".join(packer.compress(zeros) for _ in range(n_bytes >> 20)) + packer.flush()


@pytest.mark.parametrize(
    ("codec", "sys_flag"),
    [("zlib", build.ZLIB), ("lz4", build.LZ4), ("zstd", build.ZSTD)],
    ids=["zlib", "lz4", "zstd"],
)
def test_decompression_bomb_is_refused_within_bounds(codec: str, sys_flag: int) -> None:
    limit = 256 << 20
    stored = _bomb(codec, limit + (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=codec.upper()):
            decompress(stored, sys_flag)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * limit


def test_bodies_that_inflate_hugely_end_their_batch(tmp_path: Path) -> None:
    """A small span of log must not become a batch of gigabytes; bad records keep their order."""
    body = bytes(40 << 20)
    huge = build.Record(body=zlib.compress(body, 9), sys_flag=build.COMPRESSED)
    bad, small = build.Record(body_crc=1), build.Record()
    store = build.filled([huge, bad, huge, small, huge, huge, small], segment_bytes=1 << 20)
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        batches = [*opened.scan(mode="PERMISSIVE", columns="commitLogOffset,body")]
    rows = pa.Table.from_batches(batches)
    found = [rows["commitLogOffset"].to_pylist(), pc.binary_length(rows["body"]).to_pylist()]
    lengths = [len(body), None, len(body), 5, len(body), len(body), 5]
    assert found == [store.places, lengths]
    assert len(batches) >= 2


def test_many_rows_come_in_several_batches_without_loss(tmp_path: Path) -> None:
    store = build.Store(segment_bytes=1 << 20, units_per_file=3000)
    for number in range(20_000):
        store.append(build.Record(queue_id=number % 3, body=b"%d" % number))
    with rmqstore.open(store.write(tmp_path / "s")) as opened:
        expected = store.places
        for scan in ("queue", "commitlog"):
            batches = list(opened.scan(scan=scan, columns=["commitLogOffset", "body"]))
            assert [
                at for batch in batches for at in batch["commitLogOffset"].to_pylist()
            ] == expected
            assert all(0 < batch.num_rows <= 16_384 for batch in batches)
            assert batches[-1]["body"][-1].as_py() == b"19999"


def test_offset_at_refuses_an_unknown_boundary(tmp_path: Path) -> None:
    _write(tmp_path / "s", build.Record())
    with rmqstore.open(tmp_path / "s") as opened, pytest.raises(OptionError, match="boundary"):
        opened.offset_at("T", 0, 0, "middle")


def test_get_where_no_record_begins_finds_no_message(tmp_path: Path) -> None:
    _write(tmp_path / "s", build.Record())
    within, beyond = (1, 97, 200, 65_535, 65_530), (-1, -(1 << 62), 1 << 40, 1 << 62)
    with rmqstore.open(tmp_path / "s") as opened:
        for places, kind in ((within, MessageNotFoundError), (beyond, OffsetOutOfRangeError)):
            for place in places:
                with pytest.raises(kind):
                    opened.get(place)


def test_config_with_unquoted_keys_and_its_backup_are_read(tmp_path: Path) -> None:
    _write(tmp_path / "s", *[build.Record(topic="A")] * 5)
    tricky = '{"A@g,{1:2}":{0:1},"A@g":{0:2,-1:3}}'
    build.write_config(tmp_path / "s", topics=["A"])
    path = tmp_path / "s/config/consumerOffset.json"
    path.write_text(f'{{"offsetTable":{tricky}}}')
    with rmqstore.open(tmp_path / "s") as opened:
        assert opened.parts.config.groups() == ["g", "g,{1:2}"]
        assert opened.parts.config.consumer_offsets("g") == {("A", 0): 2, ("A", -1): 3}
        assert len(read(opened, starting_offsets="group:g")) == 3
    path.rename(path.with_name("consumerOffset.json.bak"))
    with rmqstore.open(tmp_path / "s") as opened:
        assert len(read(opened, starting_offsets="group:g,{1:2}")) == 4
    path.write_text("")
    with rmqstore.open(tmp_path / "s") as opened:
        assert len(read(opened, starting_offsets="group:g")) == 3


def test_offsets_of_a_broker_with_lmqs_are_read_from_its_own_file(tmp_path: Path) -> None:
    _write(tmp_path / "s", *[build.Record(topic="A")] * 5)
    build.write_config(tmp_path / "s", topics=["A"])
    path = tmp_path / "s/config/lmqConsumerOffset.json"
    (path.parent / "consumerOffset.json").unlink(missing_ok=True)
    path.write_text('{"lmqOffsetTable":{"%LMQ%a@%LMQ%g":7},"offsetTable":{"A@g":{0:2}}}')
    with rmqstore.open(tmp_path / "s") as opened:
        config = opened.parts.config
        assert config.groups() == ["%LMQ%g", "g"]
        assert config.consumer_offsets("%LMQ%g") == {("%LMQ%a", 0): 7}
        assert config.committed_offsets()["g"] == {("A", 0): 2}
        assert len(read(opened, starting_offsets="group:g")) == 3
        path.write_text('{"lmqOffsetTable":{"%LMQ%a@%LMQ%g":"x"}}')
        with pytest.raises(CorruptConfigError, match=r"lmqConsumerOffset.json.*%LMQ%a@%LMQ%g"):
            config.consumer_offsets("%LMQ%g")
        (path.parent / "consumerOffset.json").write_text('{"offsetTable":{"A@h":{0:1}}}')
        assert config.groups() == ["h"]


ERRORS = [
    errors.MalformedBytesError(3, "why"), CorruptRecordError("/s/commitlog/0", 5, "why"),
    CorruptQueueError("/s/consumequeue/0", 5, "why"),
    CorruptConfigError("/s/config/topics.json", 5, "why"), NotAStoreError("why"),
    OffsetOutOfRangeError("why"), MessageNotFoundError("why"), UnsupportedFeatureError("why"),
    OptionError("why"), errors.CorruptIndexError("/s/index/1", 5, "why"),
    errors.FileDeletedError("/s/commitlog/0"), errors.IllegalMessageError("why"),
    errors.StoreLockedError("why"), errors.RemoteReadError("what", "why", 3),
    errors.StoreStateError("why"), errors.CommitError("why"),
    errors.BrokerUnreachableError("broker:10911", "why"),
    errors.BrokerRefusedError("broker:10911", 17, "why"),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: RmqStoreError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)
    assert isinstance(again, RmqStoreError)


def in_brackets(text: str) -> str:
    return errors.rename_arguments(text, lambda name, value: f"<{name}|{value}>")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_without_arguments_stay_as_they_are(error: RmqStoreError) -> None:
    renamed = error.renamed(in_brackets)
    assert (type(renamed), renamed.args) == (type(error), error.args)


def test_arguments_in_errors_get_other_names() -> None:
    text = f"set `check_crc=False` or {errors.marked(['tags', 'limit'])}"
    error = errors.CorruptRecordError("/s/tags", 5, text)
    assert str(error) == "/s/tags, physical offset 5: set check_crc=False or tags and limit"
    for one in (error, pickle.loads(pickle.dumps(error))):
        renamed = one.renamed(in_brackets)
        assert type(renamed) is errors.CorruptRecordError
        reason = "set <check_crc|False> or <tags|None> and <limit|None>"
        assert renamed.args == ("/s/tags", 5, reason)


def test_every_public_error_is_tried_above() -> None:
    public = {name for name in rmqstore.__all__ if name.endswith("Error")}
    tried = {type(error).__name__ for error in ERRORS}
    assert public <= tried | {"RmqStoreError", "StoreFormatError"}


def test_rows_are_json_friendly_in_their_text_columns(tmp_path: Path) -> None:
    """Text is UTF-8 for certain, whatever the bytes were."""
    _write(tmp_path / "s", build.Record(properties=b"TAGS\x01\xff\xfe\x02\xc3\x01\xed\xa0\x80\x02"))
    with rmqstore.open(tmp_path / "s") as opened:
        row = read(opened, columns="tags,properties")[0]
    assert row["tags"] == "��"
    assert json.loads(json.dumps(row)) == row


def test_a_limit_ends_a_scan_and_count_agrees_with_it(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("basic")) as store:
        every = store.scan().read_all()
        assert store.count() == every.num_rows
        for limit in (1, 7, every.num_rows, every.num_rows + 1):
            assert store.scan(limit=limit).read_all() == every.slice(0, limit)
        assert store.count(scan="commitlog", limit=5) == 5
        with pytest.raises(OptionError, match="positive integer"):
            store.scan(limit=0)


def test_a_store_says_which_it_is(golden_store: Golden) -> None:
    root = golden_store("basic")
    with rmqstore.open(root) as store:
        topics = len(store.topics())
        assert (
            repr(store)
            == f"MessageStore({str(root)!r}, broker {store.broker_name!r}, {topics} topics, "
            "opened to read, the store was closed properly)"
        )
    with rmqstore.open(golden_store("crash")) as store:
        assert "the store was not closed" in repr(store)


def test_a_misspelt_topic_or_queue_is_named(tmp_path: Path) -> None:
    _write(tmp_path / "s", build.Record(topic="Orders"))
    with rmqstore.open(tmp_path / "s") as store:
        for ask in (
            store.queue_ids, store.queues, lambda name: store.queue_range(name, 0),
            lambda name: store.offsets_at(name, 0), lambda name: store.offset_at(name, 0, 0),
        ):  # fmt: skip
            with pytest.raises(OptionError, match=r"no topic Order in .*it has: Orders"):
                ask("Order")
        with pytest.raises(OptionError, match=r"has no queue \[7\]"):
            store.queue_range("Orders", 7)
        for view in ("deadLetters", "traces", "consumed", "queues"):
            with pytest.raises(OptionError, match="no topic Order"):
                store.view(view, subscribe="Order").read_all()


def test_a_notebook_shows_the_first_topics_of_a_store(tmp_path: Path) -> None:
    store = build.Store()
    for number in range(30):
        store.append(build.Record(topic=f"T{number:02}", queue_id=number % 3))
    store.append(build.Record(topic="%RETRY%<b>group</b>"))
    store.append(build.Record(topic="T00", queue_id=7))
    store.append(build.Record(topic="<script>alert(1)<"))
    root = store.write(tmp_path / "s<i>")
    with rmqstore.open(root) as opened:
        shown = opened._repr_html_()
        assert f"<div>{html.escape(repr(opened))}</div>" in shown
    assert "<i>" not in shown
    rows = re.findall(r"<tr><td>(.*?)</td><td>(\d+)</td></tr>", shown)
    assert rows[:2] == [("&lt;script&gt;alert(1)&lt;", "1"), ("T00", "2")]
    assert rows[2:] == [(f"T{number:02}", "1") for number in range(1, 19)]
    assert "and 12 more" in shown


def test_a_notebook_shows_a_store_whose_configuration_is_damaged(tmp_path: Path) -> None:
    root = build.Store().write(tmp_path / "s")
    (root / "config").mkdir(exist_ok=True)
    with rmqstore.open(root) as opened:
        shutil.rmtree(root / "consumequeue")
        (root / "consumequeue").write_text("not a folder", encoding="utf-8")
        assert str(root) in opened._repr_html_()
