"""The checkpoint that a writer leaves: the last record of all queues, where a broker keeps it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from crash.faults import WatchedDisk, require_kept_index
from goldens import Golden
from rmqstore.storage.broker.broker_run import Checkpoint, read_checkpoint
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.write.writer import StoreWriter

ROWS = pa.RecordBatch.from_pylist([{"topic": "T", "body": b"x" * 200}] * 300)


def last_record(root: Path) -> int:
    with rmqstore.open(root) as store:
        places = store.scan(scan="commitlog", columns="commitLogOffset").read_all()[0]
        return int(places[-1].as_py())


def dispatched(root: Path) -> int:
    return read_checkpoint(find_store(root)).logics_phy_offset


@pytest.mark.parametrize(
    ("name", "is_kept"), [("v55-live-lite", True), ("v55-edges", False), ("basic", False)]
)
def test_it_moves_on_with_appends_and_stays_through_a_rebuild(
    copied: Golden, name: str, *, is_kept: bool
) -> None:
    root = copied(name)
    before = dispatched(root)
    assert bool(before) == is_kept
    with rmqstore.open(root, "a"):
        pass
    assert dispatched(root) == before
    with rmqstore.open(root, "a") as writer:
        writer.append(ROWS)
    last = last_record(root)
    assert dispatched(root) == (last if is_kept else 0)
    with rmqstore.open(root, "a") as writer:
        writer.rebuild()
    assert dispatched(root) == (last if is_kept else 0)


def test_a_new_store_has_none(tmp_path: Path) -> None:
    with rmqstore.create(tmp_path / "s") as writer:
        writer.append(ROWS)
    assert dispatched(tmp_path / "s") == 0


def test_a_rebuild_that_is_interrupted_lets_a_broker_begin_at_the_first_file(
    copied: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copied("v55-live-lite")
    monkeypatch.setattr("rmqstore.write.repairer.Repairer.rebuild", lambda *_: 1 / 0)
    writer = rmqstore.open(root, "a")
    with pytest.raises(ZeroDivisionError):
        writer.rebuild()
    checkpoint = read_checkpoint(find_store(root))
    # not known, as the times are, with which an accelerated recovery reads the first file as well
    assert checkpoint[:3] == (0, 0, 0)
    assert checkpoint.logics_phy_offset == 0
    writer.close()
    assert (root / "abort").exists()


def test_a_recovery_is_sent_no_further_back_than_necessary() -> None:
    assert Checkpoint(logics_phy_offset=500).recovered_from(200).logics_phy_offset == 200
    assert Checkpoint(logics_phy_offset=100).recovered_from(200).logics_phy_offset == 100
    assert Checkpoint(5, 6, 7, logics_phy_offset=500).recovered_from(0) == Checkpoint(0, 0, 7)
    assert Checkpoint(5, 6, 7).recovered_from(0) == Checkpoint(5, 6, 7)


def test_what_is_no_record_is_not_kept(golden_store: Golden, tmp_path: Path) -> None:
    """With enableAcceleratedRecovery a broker would cut the log there."""
    for number, place in enumerate((1, 1 << 40)):
        root = Path(shutil.copytree(golden_store("v55-live-lite"), tmp_path / f"{number}"))
        checkpoint = read_checkpoint(find_store(root))._replace(logics_phy_offset=place)
        (root / "checkpoint").write_bytes(checkpoint.stored())
        with rmqstore.open(root, "a") as writer:
            assert dispatched(root) == 0
            writer.append(ROWS)
        assert dispatched(root) == last_record(root)


def test_no_kill_leaves_an_index_file_that_a_recovery_deletes(copied: Golden) -> None:
    root = copied("basic")
    kept = read_checkpoint(find_store(root)).index_msg_timestamp
    disk = WatchedDisk(lambda: require_kept_index(root))
    with StoreWriter(find_store(root), StoreConfig(), disk) as writer:
        for _ in range(2):
            writer.append(pa.record_batch({"topic": ["T"], "body": [b"x"], "keys": ["k"]}))
            writer.flush()
    assert read_checkpoint(find_store(root)).index_msg_timestamp > kept


def test_copies_of_older_records_set_it_back_before_they_are_written(
    golden_store: Golden, tmp_path: Path
) -> None:
    """A recovery that begins at a file of theirs would build no queues for records before it."""
    with rmqstore.open(golden_store("basic")) as store:
        copies = store.scan(scan="commitlog", verbatim=True, limit=3).read_all().combine_chunks()
    with rmqstore.create(tmp_path / "s") as writer:
        writer.append(ROWS)
    root = tmp_path / "s"
    now = read_checkpoint(find_store(root)).physic_msg_timestamp
    older = now - 3_600_000
    times = pa.array([now, older, now + 1], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    place = copies.schema.get_field_index("storeTimestamp")
    field = copies.schema.field(place)
    copies = copies.set_column(place, field, times.cast(field.type))
    with rmqstore.open(root, "a") as writer:
        writer.append(copies, verbatim=True)
        assert read_checkpoint(find_store(root)).min_timestamp < older
