"""Writing: what we write equals, byte for byte, what RocketMQ wrote of the same messages."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import goldens
import rmqstore
import tiers
from goldens import Golden
from reading import descriptors_in
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.log.appender import RecordId
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.write.ledger import Ledger
from rmqstore.write.messages import WriteSpec
from written import files_of


def index_bytes(root: Path) -> list[bytes]:
    """The index files in the order of their names, which are the times when they were made."""
    return [data for _, data in sorted(files_of(root, "index").items())]


def config_of(name: str) -> StoreConfig:
    return StoreConfig().updated(goldens.summary(name)["conf"])


BYTE_FOR_BYTE = [
    "basic", "edges", "v2", "compressed", "ipv6", "prop-crc", "preblank", "one", "v49", "live",
    "v55-edges", "v55-preblank",
]  # fmt: skip


@pytest.mark.parametrize(("name", "flush_every"), tiers.spread(3, BYTE_FOR_BYTE, [None, 1, 3]))
def test_a_verbatim_copy_is_byte_for_byte_what_rocketmq_wrote(
    golden_store: Golden, tmp_path: Path, name: str, flush_every: int | None
) -> None:
    root, copy = golden_store(name), tmp_path / "copy"
    step = {None: 1 << 30, 1: 7, 3: 100}[flush_every]
    if name in goldens.NEWEST:  # then a broker indexes tags
        (copy / "rocksdbstore").mkdir(parents=True)
    with (
        rmqstore.open(root, broker_name="b") as store,
        rmqstore.create(copy, config=config_of(name)) as writer,
    ):
        table = store.scan(scan="commitlog", verbatim=True).read_all().combine_chunks()
        for number, batch in enumerate(table.to_batches(max_chunksize=step)):
            writer.append(batch, verbatim=True)
            if flush_every and number % flush_every == 0:
                writer.flush()
    assert files_of(copy, "commitlog") == files_of(root, "commitlog")
    assert files_of(copy, "consumequeue") == files_of(root, "consumequeue")
    assert index_bytes(copy) == index_bytes(root)
    assert not (copy / "abort").exists()


def test_large_index_files_show_their_sizes(tmp_path: Path) -> None:
    """Millions of pairs of sizes give this length; they are not tried one by one."""
    config = StoreConfig(max_hash_slot_num=400_001, max_index_num=16_000_000)
    batch = pa.RecordBatch.from_pylist(
        [{"topic": "T", "body": b"x", "keys": f"k{number}"} for number in range(50)]
    )
    with rmqstore.create(tmp_path / "s", config=config) as writer:
        writer.append(batch)
    with rmqstore.open(tmp_path / "s", mode="a") as writer:
        assert writer.config == config


def test_a_refused_exact_copy_takes_no_queue_offsets(golden_store: Golden, tmp_path: Path) -> None:
    with rmqstore.open(golden_store("basic")) as source:
        table = source.scan(scan="commitlog", verbatim=True).read_all()
    (rows,) = table.combine_chunks().to_batches()
    offsets = rows["queueOffset"].to_pylist()
    place = rows.schema.get_field_index("queueOffset")
    wrong = rows.set_column(place, "queueOffset", pa.array([*offsets[:-1], offsets[-1] + 1]))
    with rmqstore.create(tmp_path / "s", config=config_of("basic")) as writer:
        with pytest.raises(rmqstore.IllegalMessageError, match="nothing was written"):
            writer.append(wrong, verbatim=True)
        writer.append(rows, verbatim=True)
    assert files_of(tmp_path / "s", "commitlog") == files_of(golden_store("basic"), "commitlog")


def test_a_version_that_was_not_written_leaves_the_one_before_it_done(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"topic": ["T"], "body": [b"x"]})
    with rmqstore.create(tmp_path / "s") as writer:
        writer.append(batch)
        writer.flush(txn=("app", 5))
    entry = tmp_path / "s" / ".rmqstore" / "ledger" / "app.json"
    done = json.loads(entry.read_text())
    mark = {"physical_offset": 10**6, "size": 99, "sha256": "0" * 64}
    lost = {"version": 6, "first": mark, "last": mark, "is_done": False, "previous": 5}
    entry.write_text(json.dumps(done | lost))
    for _ in range(2):  # the second time of what the first one settled
        with rmqstore.open(tmp_path / "s", mode="a") as writer:
            assert writer.done_version("app") == 5


def test_a_closed_writer_lets_its_queues_go(tmp_path: Path) -> None:
    """It is part of a cycle, and thousands of queues would wait for the collection of garbage."""
    writer = rmqstore.create(tmp_path / "store")
    writer.append(pa.record_batch({"topic": ["A", "B"], "body": [b"a", b"b"]}))
    writer.close()
    assert not writer._queues


def test_a_closed_writer_leaves_no_file_open(tmp_path: Path) -> None:
    root = tmp_path / "store"
    for _ in range(2):  # the second one reads the log where the first has ended
        writer = rmqstore.open(root, "a") if root.exists() else rmqstore.create(root)
        writer.append(pa.record_batch({"topic": ["A", "A"], "body": [b"a", b"b"]}))
        writer.flush()
        writer.close()
        assert not descriptors_in(root)
        assert str(root) not in Path("/proc/self/maps").read_text()


def test_discarded_rows_leave_no_topic_and_no_hole_in_a_queue(tmp_path: Path) -> None:
    kept, discarded = (
        pa.record_batch({"topic": topics, "body": [b"x"] * 2}) for topics in (["A"] * 2, ["A", "B"])
    )
    with rmqstore.create(tmp_path / "s", spec=WriteSpec(default_queue_nums=1)) as writer:
        writer.append(discarded)
        writer.abandon()
        writer.append(kept)
        writer.flush()
        writer.append(discarded)
        writer.abandon()
    table = json.loads((tmp_path / "s" / "config" / "topics.json").read_text())
    assert [*table["topicConfigTable"]] == ["A"]
    with rmqstore.open(tmp_path / "s") as store:
        assert store.scan(columns="queueOffset").read_all()[0].to_pylist() == [0, 1]


def test_store_times_do_not_fall_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, clock = tmp_path / "store", iter([3000, 2000, 1000])
    monkeypatch.setattr("rmqstore.write.writer.now_ms", lambda: next(clock))
    rows = pa.table({"topic": ["T"], "body": [b"x"]})
    with rmqstore.create(root) as writer:
        writer.append(rows)
        writer.append(rows)
    with rmqstore.open(root, "a") as writer:
        writer.append(rows)
    with rmqstore.open(root) as store:
        times = store.scan(columns="storeTimestamp").read_all().column(0).cast(pa.int64())
    assert times.to_pylist() == [3_000_000] * 3  # µs


def test_a_write_that_was_begun_in_vain_does_not_hide_the_version_before(tmp_path: Path) -> None:
    root, nowhere = tmp_path / "store", RecordId(1 << 30, 100, "")
    with rmqstore.create(root) as writer:
        writer.append(pa.table({"topic": ["T"], "body": [b"x"]}))
        writer.flush(txn=("app", 1))
    ledger = Ledger(Disk(), root)
    with closing(CommitLog([root / "commitlog"])) as log:
        for version in (2, 3):
            ledger.intend("app", version, log, nowhere, nowhere)
            assert ledger.version("app", log) == 1
