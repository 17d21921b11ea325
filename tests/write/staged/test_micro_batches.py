"""Many small jobs leave the same store as one job with their rows, and the last costs no more."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from crash.test_failing_calls import Calls
from pyspark_rmqstore.sink import begin, job_folder, sweep
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.write.messages import MessageMaker, WriteSpec
from rmqstore.write.staged import PartWriter, StagedTask
from rmqstore.write.writer import StoreWriter

ROWS, TASKS = 200, 2
# A file of the log holds some 13 micro-batches.
SIZES = StoreConfig(1 << 19, 20_000, max_hash_slot_num=1000, max_index_num=4000)


def parts(root: Path, job_id: str, numbers: range) -> Iterator[StagedTask]:
    """Stage rows of these numbers, as the tasks of a job do."""
    begin(str(root), job_id)
    for first in range(numbers.start, numbers.stop, ROWS // TASKS):
        task = first // (ROWS // TASKS)
        rows = range(first, first + ROWS // TASKS)
        columns = MessageMaker(WriteSpec(topic="T"), task).make(
            pa.record_batch(
                {
                    "body": [b"%d" % row for row in rows],
                    "keys": [f"k{row}" for row in rows],
                    "queueId": pa.array([row % 4 for row in rows], pa.int32()),
                }
            )
        )
        folder = job_folder(str(root), job_id)
        with PartWriter(Disk(), folder / f"part-{task}", SIZES.mapped_file_size_commit_log) as file:
            file.write(columns)
            yield file.part()


def run_job(root: Path, version: int, numbers: range) -> None:
    """Append rows as a micro-batch."""
    job_id = f"query-{version}"
    staged = list(parts(root, job_id, numbers))
    with StoreWriter(find_store(root), SIZES) as writer:
        done = writer.done_version("query:1")
        assert done == (version - 1 if version else None)
        writer.append_staged(staged, are_all=True)
        writer.flush(txn=("query:1", version))
    sweep(str(root), job_id)


def n_files(root: Path, folder: str) -> int:
    return sum(path.is_file() for path in (root / folder).rglob("*"))


@pytest.mark.parametrize(
    "n_batches", [60, pytest.param(1000, marks=pytest.mark.slow)], ids=["sample", "1000"]
)
def test_micro_batches_leave_no_more_files_than_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_batches: int
) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    for root in (one, many):
        rmqstore.create(root, config=SIZES).close()
    run_job(one, 0, range(n_batches * ROWS))
    calls = Calls()
    n_changes, ledger = list[int](), many / ".rmqstore" / "ledger"
    with monkeypatch.context() as patch:
        calls.install(patch)
        for number in range(n_batches):
            run_job(many, number, range(number * ROWS, (number + 1) * ROWS))
            # Reads are left out: each opening reads the headers of index files, as a broker does.
            n_changes.append(sum(not call.startswith("preadv") for call in calls.done))
            calls.done.clear()
            (entry,) = ledger.iterdir()
            assert entry.stat().st_size < 1000
    for folder in ("commitlog", "consumequeue", "index"):
        assert n_files(many, folder) <= 1.05 * n_files(one, folder), folder
    assert n_files(one, "commitlog") > n_batches // 30, "the jobs fill several files"
    tenth = n_batches // 10
    first, last = n_changes[tenth : 2 * tenth], n_changes[-tenth:]
    # A few batches begin a file, and keys are random, so batches differ by a tenth. What grew with
    # every batch would be far more after a thousand of them.
    assert statistics.median(last) <= 1.15 * statistics.median(first)
    assert max(last) <= 2 * max(first)
    with rmqstore.open(many) as store:
        assert not list(verify(store))
        bodies = store.scan(columns="body", scan="commitlog").read_all()["body"].to_pylist()
    assert bodies == [b"%d" % row for row in range(n_batches * ROWS)]
