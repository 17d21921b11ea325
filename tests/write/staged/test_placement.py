"""What tasks stage is appended in their order, as if their rows had been appended directly."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import rmqstore
import tiers
from rmqstore.errors import IllegalMessageError, StoreStateError
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.disk import Disk
from rmqstore.write import staged as part_module, writer as writer_module
from rmqstore.write.messages import MessageMaker, WriteSpec
from rmqstore.write.staged import PartWriter, StagedTask
from rmqstore.write.writer import StoreWriter
from written import require_valid

SMALL = StoreConfig(mapped_file_size_commit_log=65_536, mapped_file_size_consume_queue=2000)
SPEC = WriteSpec(make_uniq_key=False, default_queue_nums=3)
COLUMNS = "topic,queueId,queueOffset,commitLogOffset,body,tags,keys,properties,bodyCRC,sysFlag"


def random_rows(rng: random.Random, n: int) -> pa.RecordBatch:
    rows = [
        {
            "topic": rng.choice(["Orders", "Refunds", "t" * 100]),
            "body": rng.randbytes(rng.choice([0, 3, 200, 3000])),
            "tags": rng.choice([None, "a", "größer"]),
            "keys": rng.choice([None, "k", f"k{number} shared"]),
            "queueId": rng.choice([None, None, 0, 7]),
            "delayTimeLevel": rng.choice([None, None, None, 3]),
        }
        for number in range(n)
    ]
    kinds = [pa.string(), pa.binary(), pa.string(), pa.string(), pa.int32(), pa.int32()]
    return pa.RecordBatch.from_pylist(rows, pa.schema(zip(rows[0], kinds, strict=True)))


def stage(root: Path, number: int, batches: Sequence[pa.RecordBatch]) -> StagedTask:
    folder = root / ".rmqstore" / "staging" / "job"
    folder.mkdir(parents=True, exist_ok=True)
    maker = MessageMaker(SPEC)
    with PartWriter(Disk(), folder / f"part-{number}", 1 << 30) as file:
        for batch in batches:
            columns = maker.make(batch)
            file.write(columns)
        return file.part()


def begun_job(root: Path) -> Path:
    """Make an empty store and return the folder of a job that writes into it."""
    rmqstore.create(root, config=SMALL, spec=SPEC).close()
    folder = root / ".rmqstore" / "staging" / "job"
    folder.mkdir(parents=True)
    return folder


def messages(root: Path) -> list[dict[str, Any]]:
    with rmqstore.open(root, broker_name="b") as store:
        found = store.scan(columns=COLUMNS, include_system_topics=True).read_all().to_pylist()
    return sorted(found, key=lambda row: row["commitLogOffset"])


def open_for_writing(root: Path) -> StoreWriter:
    return StoreWriter(find_store(root), SMALL, spec=SPEC)


@pytest.mark.parametrize("seed", tiers.seeds(8))
def test_staged_rows_stand_as_if_they_had_been_appended(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    tasks = [
        [random_rows(rng, rng.choice([1, 30, 200])) for _ in range(rng.randrange(3))]
        for _ in range(8)
    ]
    before = random_rows(rng, 10)
    roots = tmp_path / "appended", tmp_path / "staged"
    for root in roots:
        with rmqstore.create(root, config=SMALL, spec=SPEC) as writer:
            writer.append(before)
    with mock.patch.object(part_module, "row_batches", in_pieces_of(rng.choice([7, 10_000]))):
        parts = [stage(roots[1], *task) for task in enumerate(tasks)]
    now = rmqstore_now()
    with mock.patch.object(writer_module, "now_ms", return_value=now):
        with open_for_writing(roots[0]) as writer:
            for task in tasks:
                writer._maker = MessageMaker(SPEC)  # a task takes turns of its own
                for batch in task:
                    writer.append(batch)
        with open_for_writing(roots[1]) as writer:
            middle = rng.randrange(9)
            writer.append_staged(parts[:middle])
            if rng.random() < 0.5:
                writer.flush()
            writer.append_staged(parts[middle:])
    assert messages(roots[0]) == messages(roots[1])
    for root in roots:
        require_valid(root)


def in_pieces_of(count: int) -> Any:
    return lambda sizes: [
        slice(start, min(start + count, len(sizes))) for start in range(0, len(sizes), count)
    ]


def rmqstore_now() -> int:
    return writer_module.now_ms() + 1000


def test_staged_and_appended_rows_are_committed_together(tmp_path: Path) -> None:
    rows = [random_rows(random.Random(seed), 50) for seed in range(4)]
    root = tmp_path / "s"
    with rmqstore.create(root, config=SMALL, spec=SPEC) as writer:
        writer.append(rows[0])
        writer.append_staged([stage(root, 1, [rows[1]])])
        writer.append(rows[2])
        writer.append_staged([stage(root, 2, [rows[3]])])
        assert messages(root) == []
        writer.flush()
    expected = [body for batch in rows for body in batch["body"].to_pylist()]
    assert [row["body"] for row in messages(root)] == expected
    require_valid(root)


@pytest.mark.parametrize("name", ["part-1", "part-1.side"])
def test_a_damaged_part_leaves_the_store_as_it_was(tmp_path: Path, name: str) -> None:
    root, rng = tmp_path / "s", random.Random(0)
    with rmqstore.create(root, config=SMALL, spec=SPEC) as writer:
        writer.append(random_rows(rng, 20))
    before = messages(root)
    parts = [stage(root, number, [random_rows(rng, 300)]) for number in range(3)]
    path = root / ".rmqstore" / "staging" / "job" / name
    path.write_bytes(path.read_bytes()[:1000])
    writer = open_for_writing(root)
    with pytest.raises(StoreStateError, match=r"part-1.* cut.*nothing since the last flush"):
        writer.append_staged(parts)
    writer.append(random_rows(rng, 5))
    writer.close()
    assert messages(root)[:20] == before
    assert len(messages(root)) == 25
    require_valid(root)


def test_a_record_that_no_file_holds_discards_the_job(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with rmqstore.create(root, config=SMALL, spec=SPEC) as writer:
        writer.append(random_rows(random.Random(0), 20))
    large = pa.RecordBatch.from_pydict({"topic": ["Orders"], "body": [b"x" * 70_000]})
    parts = [stage(root, 0, [random_rows(random.Random(1), 20)]), stage(root, 1, [large])]
    with open_for_writing(root) as writer, pytest.raises(IllegalMessageError, match="a record of"):
        writer.append_staged(parts)
    assert len(messages(root)) == 20
    require_valid(root)


def test_a_task_that_goes_on_after_the_commit_touches_nothing(tmp_path: Path) -> None:
    root, rng = tmp_path / "s", random.Random(0)
    folder = begun_job(root)
    columns = MessageMaker(SPEC).make(random_rows(rng, 100))
    with PartWriter(Disk(), folder / "part-0", 1 << 30) as zombie:
        zombie.write(columns)
        with open_for_writing(root) as writer:
            writer.append_staged([stage(root, 1, [random_rows(rng, 50)])])
            writer.flush()
            shutil.rmtree(folder)
            zombie.write(columns)
    assert len(messages(root)) == 50
    require_valid(root)
    gone = pytest.raises(StoreStateError, match=r"part-2: .*No such file.*staging/job")
    with gone, PartWriter(Disk(), folder / "part-2", 1 << 30) as late:
        late.write(columns)
    assert not folder.exists()


def test_a_part_that_its_task_wrote_on_is_appended_as_it_was_reported(tmp_path: Path) -> None:
    root, rng = tmp_path / "s", random.Random(0)
    folder = begun_job(root)
    columns = MessageMaker(SPEC).make(random_rows(rng, 100))
    with PartWriter(Disk(), folder / "part-0", 1 << 30) as task:
        task.write(columns)
        reported = task.part()
        task.write(columns)
        with open_for_writing(root) as writer:
            writer.append_staged([reported])
    assert len(messages(root)) == 100
    require_valid(root)


@pytest.mark.parametrize("n_free", [0, 1, 7, 8])
def test_staged_rows_may_end_near_the_end_of_a_file(tmp_path: Path, n_free: int) -> None:
    """A record that leaves fewer than eight bytes of a file begins the next one."""
    root = tmp_path / "s"
    filler = pa.record_batch({"topic": ["T"], "body": [b""]})
    with rmqstore.create(root, config=SMALL, spec=SPEC) as writer:
        writer.append(filler)
    part = stage(root, 0, [pa.record_batch({"topic": ["T"] * 3, "body": [b"a", b"b", b"c"]})])
    (first,) = messages(root)
    with rmqstore.open(root) as store:
        size = store.scan(columns="storeSize").read_all()[0][0].as_py()
    assert first["commitLogOffset"] == 0
    body = b"x" * (SMALL.mapped_file_size_commit_log - part.n_bytes - n_free - 2 * size)
    with open_for_writing(root) as writer:
        writer.append(filler.set_column(1, "body", pa.array([body])))
        writer.flush()
        writer.append_staged([part], are_all=True)
    rows = messages(root)
    assert [row["body"] for row in rows[2:]] == [b"a", b"b", b"c"]
    is_in_next = rows[-1]["commitLogOffset"] == SMALL.mapped_file_size_commit_log
    assert is_in_next == (n_free < 8)
    require_valid(root)
