"""Planning, from ranges to tasks, without a session or files: invented logs of known sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from pyspark_rmqstore.packing import OPEN_COST, Packed, plan_tasks
from rmqstore.read.split import Limits, Sample, SampledQueues, SampledSlice, SampledSpan, cut_log
from rmqstore.spans import LogSlice, QueueKey, QueueSlice

Tasks = list[tuple[QueueSlice, ...]]
SEEDS = range(25)
UNLIMITED = 1 << 60


class MadeQueue(NamedTuple):
    """A queue of an invented log: its range, and the physical offset and size of each message."""

    queue_slice: QueueSlice
    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def sampled(self, n_samples: int, n_units: int = 16) -> SampledSlice:
        """Return the range with points of it, as the planner gets them from a store."""
        count = len(self.sizes)
        samples = [
            Sample(
                self.queue_slice.start + at,
                int(self.physical_offsets[at]),
                float(self.sizes[at : at + n_units].mean()),
            )
            for at in np.unique(np.linspace(0, count - 1, max(n_samples, 2)).astype(int)).tolist()
        ]
        return SampledSlice(self.queue_slice, samples)

    def n_bytes(self, part: QueueSlice) -> int:
        first = self.queue_slice.start
        return int(self.sizes[part.start - first : part.end - first].sum())


def make_log(
    rng: np.random.Generator, n_queues: int, n_records: int, mean_bytes: int = 1000
) -> list[MadeQueue]:
    """Return the queues of a log whose records go to random queues, to some more than to others."""
    shares = rng.exponential(size=n_queues) ** 2 + 1e-9
    owners = rng.choice(n_queues, n_records, p=shares / shares.sum())
    sizes = rng.integers(100, 2 * mean_bytes - 100, n_records)
    places = int(rng.integers(1 << 40)) + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    queues = []
    for owner in np.unique(owners).tolist():
        mine = np.flatnonzero(owners == owner)
        start = int(rng.integers(1 << 33))
        queue_slice = QueueSlice(f"topic-{owner // 4}", owner % 4, start, start + len(mine))
        queues.append(MadeQueue(queue_slice, places[mine], sizes[mine]))
    return queues


def random_limits(rng: np.random.Generator, n_bytes: int) -> Limits:
    return Limits(
        int(max(1, n_bytes / rng.uniform(0.5, 40))),
        int(rng.integers(1, 300)) if rng.random() < 0.5 else None,
        int(rng.integers(1, 60)) if rng.random() < 0.5 else None,
    )


def key(part: QueueSlice) -> QueueKey:
    return part.topic, part.queue_id


def assert_exact(tasks: Tasks, queue_slices: Sequence[QueueSlice]) -> None:
    """Check that every offset is in one task, in queue order, and that no task is empty."""
    next_offsets = {key(whole): whole.start for whole in queue_slices}
    for task in tasks:
        assert task
        assert len(set(map(key, task))) == len(task), "a queue comes twice in a task"
        for part in task:
            assert part.start < part.end
            assert part.start == next_offsets[key(part)]
            next_offsets[key(part)] = part.end
    assert next_offsets == {key(whole): max(whole.start, whole.end) for whole in queue_slices}


def n_records(task: Sequence[QueueSlice]) -> int:
    return sum(part.end - part.start for part in task)


def true_bytes(tasks: Tasks, queues: list[MadeQueue]) -> NDArray[np.int64]:
    by_key = {key(queue.queue_slice): queue for queue in queues}
    return np.array([sum(by_key[key(part)].n_bytes(part) for part in task) for task in tasks])


@pytest.mark.parametrize("seed", SEEDS)
def test_every_queue_offset_is_in_one_task_and_queues_go_on_where_they_stopped(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queues = make_log(rng, int(rng.integers(1, 40)), int(rng.integers(1, 4000)))
    limits = random_limits(rng, sum(int(queue.sizes.sum()) for queue in queues))
    tasks = plan_queues([queue.sampled(int(rng.integers(2, 64))) for queue in queues], limits)
    assert_exact(tasks, [queue.queue_slice for queue in queues])
    assert limits.max_records is None or max(map(n_records, tasks)) <= limits.max_records


@pytest.mark.parametrize("seed", SEEDS)
def test_tasks_are_about_equal_in_bytes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queues = make_log(rng, int(rng.integers(1, 25)), 40_000)
    total = sum(int(queue.sizes.sum()) for queue in queues)
    n_tasks = int(rng.integers(2, 25))
    tasks = plan_queues([queue.sampled(256) for queue in queues], Limits(total // n_tasks))
    found = true_bytes(tasks, queues)
    assert n_tasks <= len(tasks) <= n_tasks + 2
    assert found.max() / found.mean() < 1.3
    assert_exact(tasks, [queue.queue_slice for queue in queues])


def test_tasks_are_about_equal_in_bytes_where_records_change_in_size() -> None:
    rng = np.random.default_rng(7)
    (queue,) = make_log(rng, 1, 20_000)
    sizes = np.where(np.arange(20_000) < 10_000, 200, 6_000).astype(np.int64)
    queue = queue._replace(
        sizes=sizes, physical_offsets=np.concatenate(([0], np.cumsum(sizes)[:-1]))
    )
    tasks = plan_queues([queue.sampled(256)], Limits(int(sizes.sum()) // 10))
    found = true_bytes(tasks, [queue])
    assert found.max() / found.mean() < 1.1
    assert max(map(n_records, tasks)) > 5 * min(map(n_records, tasks))


@pytest.mark.parametrize("seed", SEEDS)
def test_tasks_are_ranges_of_the_log_so_that_each_page_is_read_once(seed: int) -> None:
    """Successive tasks may overlap around a cut, where samples tell the place only about."""
    rng = np.random.default_rng(seed)
    queues = make_log(rng, 12, 20_000)
    by_key = {key(queue.queue_slice): queue for queue in queues}
    tasks = plan_queues(
        [queue.sampled(512) for queue in queues], Limits(UNLIMITED, min_partitions=8)
    )
    spans = []
    for task in tasks:
        places = []
        for part in task:
            queue = by_key[key(part)]
            ends = np.array([part.start, part.end - 1]) - queue.queue_slice.start
            places += queue.physical_offsets[ends].tolist()
        spans.append(max(places) - min(places))
    whole = max(queue.physical_offsets[-1] for queue in queues) - min(
        queue.physical_offsets[0] for queue in queues
    )
    assert len(tasks) == 8
    assert sum(spans) < 1.25 * whole


@pytest.mark.parametrize("n_tasks", [1, 2, 7, 64, 500])
@pytest.mark.parametrize("seed", range(8))
def test_there_are_as_many_tasks_as_requested_when_there_are_as_many_messages(
    seed: int, n_tasks: int
) -> None:
    rng = np.random.default_rng(seed)
    queues = make_log(rng, int(rng.integers(1, 20)), int(rng.integers(1, 1000)))
    total = sum(n_records([queue.queue_slice]) for queue in queues)
    n_samples = min(total, 16 * n_tasks + 2)
    tasks = plan_queues(
        [queue.sampled(n_samples) for queue in queues], Limits(UNLIMITED, min_partitions=n_tasks)
    )
    assert len(tasks) >= min(n_tasks, total)
    assert_exact(tasks, [queue.queue_slice for queue in queues])


def test_a_single_message_larger_than_all_others_does_not_take_tasks_away() -> None:
    queue_slices = [QueueSlice("big", 0, 0, 1), QueueSlice("small", 0, 0, 9)]
    samples = [[Sample(0, 0, 1e6)], [Sample(at, 1_000_000 + 100 * at, 100.0) for at in range(9)]]
    tasks = plan_queues(
        list(map(SampledSlice, queue_slices, samples)), Limits(UNLIMITED, min_partitions=10)
    )
    assert len(tasks) == 10
    assert_exact(tasks, queue_slices)


def test_asking_for_far_more_tasks_than_messages_gives_each_message_its_own() -> None:
    one = SampledSlice(QueueSlice("T", 0, 5, 8), [Sample(5, 0, 100.0), Sample(7, 200, 100.0)])
    tasks = plan_queues([one], Limits(UNLIMITED, min_partitions=10**12))
    assert tasks == [(one.queue_slice._replace(start=at, end=at + 1),) for at in (5, 6, 7)]
    assert plan_queues([one], Limits(UNLIMITED)) == [(one.queue_slice,)], "without need it is whole"


@pytest.mark.parametrize("limits", [Limits(1), Limits(100, 1, 1), Limits(100, None, 8)], ids=str)
def test_what_is_empty_gives_no_task(limits: Limits) -> None:
    nothing = Read("store", 0, 0)
    assert plan_tasks([], limits) == plan_tasks([nothing, nothing], limits) == []
    for headers in ([], [0], [7], [0, 7, 9]):
        assert cut_at_headers(LogSlice(7, 7, is_closed=True), headers, limits) == []
    empty = [SampledSlice(QueueSlice("T", 0, 5, 5), []), SampledSlice(QueueSlice("T", 1, 9, 3), [])]
    assert plan_queues([], limits) == []
    assert plan_queues(empty, limits) == []
    full = SampledSlice(QueueSlice("T", 2, 4, 5), [Sample(4, 0, 50.0)])
    assert plan_queues([empty[0], full, empty[1]], limits) == [(full.queue_slice,)]


def test_a_single_huge_queue_is_cut() -> None:
    start, count, size = 10**12, 10**9, 1000
    points = np.linspace(start, start + count - 1, 1024).astype(np.int64).tolist()
    one = SampledSlice(
        QueueSlice("huge", 0, start, start + count),
        [Sample(at, (at - start) * size, float(size)) for at in points],
    )
    tasks = plan_queues([one], Limits(128 << 20))
    assert len(tasks) == -(-count * size // (128 << 20))
    assert_exact(tasks, [one.queue_slice])
    counts = np.array([n_records(task) for task in tasks])
    assert counts.max() / counts.mean() < 1.01


def test_sixteen_thousand_small_queues_share_tasks() -> None:
    """2000 topics of 8 queues, 20 messages of 1 kB in each, dealt in turn: 320 MB."""
    n_queues, n_each, size = 16_000, 20, 1000
    sampled = []
    for number in range(n_queues):
        queue_slice = QueueSlice(f"topic-{number // 8}", number % 8, 0, n_each)
        points = [
            Sample(at, (at * n_queues + number) * size, float(size)) for at in (0, n_each - 1)
        ]
        sampled.append(SampledSlice(queue_slice, points))
    tasks = plan_queues(sampled, Limits(128 << 20))
    assert len(tasks) == 3
    counts = np.array([n_records(task) for task in tasks])
    assert counts.max() / counts.mean() < 1.2
    assert_exact(tasks, [one.queue_slice for one in sampled])


EDGES = np.array([-(1 << 63), -1, 0, 1, (1 << 63) - 1])
BENDS: dict[str, Callable[[np.random.Generator, list[int]], list[int]]] = {
    "shuffled": lambda rng, places: rng.permutation(places).tolist(),
    "reversed": lambda _rng, places: places[::-1],
    "equal": lambda _rng, places: [places[0]] * len(places),
    "wild": lambda rng, places: rng.choice(EDGES, len(places)).tolist(),
    "one_stray": lambda _rng, places: [
        (1 << 62) if at == len(places) // 2 else place for at, place in enumerate(places)
    ],
}


@pytest.mark.parametrize("bend", BENDS)
@pytest.mark.parametrize("seed", range(6))
def test_samples_that_contradict_the_log_still_give_every_offset_once(seed: int, bend: str) -> None:
    rng = np.random.default_rng(seed)
    queues = make_log(rng, 8, 1500)
    bent = []
    for queue in queues:
        queue_slice, samples = queue.sampled(12)
        places = BENDS[bend](rng, [sample.physical_offset for sample in samples])
        bent_samples = [
            Sample(sample.queue_offset, place, float(rng.choice([0.0, 1.0, sample.mean_bytes])))
            for sample, place in zip(samples, places, strict=True)
        ]
        bent.append(SampledSlice(queue_slice, bent_samples))
    for limits in (Limits(50_000), Limits(UNLIMITED, 40, 9), Limits(1, None, 3)):
        tasks = plan_queues(bent, limits)
        assert_exact(tasks, [queue.queue_slice for queue in queues])
        if limits.max_records:
            assert max(map(n_records, tasks)) <= limits.max_records


@pytest.mark.parametrize("mean_bytes", [0.0, 1e-9])
def test_records_that_weigh_nothing_still_give_every_offset_once(mean_bytes: float) -> None:
    one = SampledSlice(
        QueueSlice("T", 0, 3, 103), [Sample(3, 0, mean_bytes), Sample(102, 900, mean_bytes)]
    )
    assert_exact(plan_queues([one], Limits(10, None, 5)), [one.queue_slice])


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([], id="none"),
        pytest.param([Sample(50, 5000, 100.0)], id="one inside"),
        pytest.param(
            [Sample(10, 1000, 100.0), Sample(60, 6000, 100.0)], id="neither the first nor the last"
        ),
    ],
)
def test_a_range_with_units_that_could_not_be_sampled_is_planned_whole(
    samples: list[Sample],
) -> None:
    """Where a queue file is missing, a store has no point of the queue to give."""
    poor = SampledSlice(QueueSlice("T", 0, 0, 100), samples)
    valid = SampledSlice(
        QueueSlice("T", 1, 7, 107), [Sample(7 + at, 200 * at, 100.0) for at in (0, 50, 99)]
    )
    for limits in (Limits(UNLIMITED), Limits(2000), Limits(UNLIMITED, 7, 9)):
        assert_exact(plan_queues([poor], limits), [poor.queue_slice])
        assert_exact(plan_queues([valid, poor], limits), [valid.queue_slice, poor.queue_slice])


def plan_queues(sampled: Sequence[SampledSlice], limits: Limits) -> list[tuple[QueueSlice, ...]]:
    return SampledQueues(sampled).cut(limits)


def cut_at_headers(whole: LogSlice, headers: Sequence[int], limits: Limits) -> list[LogSlice]:
    points = [whole.start, *(head for head in headers if whole.start < head < whole.end), whole.end]
    parts = [
        SampledSpan(whole._replace(start=start, end=end), end - start)
        for start, end in pairwise(points)
        if start < end
    ]
    return [part.log_slice for (part,) in cut_log(parts, limits)]


def random_headers(rng: np.random.Generator, whole: LogSlice) -> list[int]:
    inside = rng.integers(whole.start, whole.end, int(rng.integers(0, 200))).tolist()
    return sorted({whole.start, whole.start - 500, whole.end, whole.end + 500, *inside})


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_log_is_covered_once_and_cut_only_where_records_begin(
    seed: int, is_closed: bool
) -> None:
    rng = np.random.default_rng(seed)
    start = int(rng.integers(1000, 1 << 40))
    whole = LogSlice(start, start + int(rng.integers(1, 1_000_000)), is_closed)
    headers = random_headers(rng, whole)
    limits = random_limits(rng, whole.end - whole.start)._replace(max_records=None)
    log_slices = cut_at_headers(whole, headers, limits)
    assert log_slices[0].start == whole.start
    assert all(before.end == after.start for before, after in pairwise(log_slices))
    assert log_slices[-1].end == whole.end
    assert {part.start for part in log_slices[1:]} <= set(headers)
    assert all(part.start < part.end and part.is_closed == is_closed for part in log_slices)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slice_of_the_log_is_too_long_only_where_no_header_lies_in_it_and_never_needlessly_short(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    whole = LogSlice(10_000, 10_000 + int(rng.integers(1000, 1_000_000)), is_closed=True)
    headers = random_headers(rng, whole)
    goal = int(rng.integers(1, 300_000))
    log_slices = cut_at_headers(whole, headers, Limits(goal))
    for log_slice in log_slices:
        inside = [head for head in headers if log_slice.start < head < log_slice.end]
        assert log_slice.end - log_slice.start <= goal or not inside
    for log_slice in log_slices[:-1]:
        following = min(head for head in headers if head > log_slice.end)
        assert min(following, whole.end) - log_slice.start > goal, (
            "it could have been joined with what follows"
        )


@pytest.mark.parametrize("n_tasks", [1, 3, 10, 100])
def test_the_log_is_cut_into_the_requested_number_of_slices(n_tasks: int) -> None:
    whole = LogSlice(4096, 4096 + 1_000_000, is_closed=True)
    headers = list(range(4096, 4096 + 1_000_000, 250))
    log_slices = cut_at_headers(whole, headers, Limits(UNLIMITED, None, n_tasks))
    assert n_tasks <= len(log_slices) <= n_tasks + 2
    assert max(log_slice.end - log_slice.start for log_slice in log_slices) <= 1_000_000 // n_tasks


def test_cuts_lie_where_the_bytes_of_all_queues_add_up() -> None:
    """The example of ``_cuts``: 50 bytes up to offset 50, then 3 per byte up to 100."""
    sparse = SampledSlice(QueueSlice("A", 0, 0, 100), [Sample(0, 0, 1.0), Sample(99, 99, 1.0)])
    dense = SampledSlice(QueueSlice("B", 0, 0, 100), [Sample(0, 50, 1.0), Sample(98, 99, 1.0)])
    first, second = plan_queues([sparse, dense], Limits(max_bytes=100))
    assert first == (QueueSlice("A", 0, 0, 67), QueueSlice("B", 0, 0, 34))
    assert second == (QueueSlice("A", 0, 67, 100), QueueSlice("B", 0, 34, 100))


class Part(InputPartition):
    """A task that knows only how much it reads."""

    def __init__(self, store: str, n_bytes: int, n_records: int) -> None:
        self.store, self.n_bytes, self.n_records = store, n_bytes, n_records


class Read(NamedTuple):
    """A read of equal records, which is cut evenly."""

    source: str
    n_bytes: int
    number: int
    is_counted: bool = True

    @property
    def n_records(self) -> int | None:
        return self.number if self.is_counted else None

    def split(self, limits: Limits) -> list[Part]:
        if not self.number:
            return []
        count = max(1, -(-self.n_bytes // limits.max_bytes), limits.min_partitions or 1)
        if self.is_counted and limits.max_records:
            count = max(count, -(-self.number // limits.max_records))
        count = min(count, self.number)
        ends = [self.number * number // count for number in range(count + 1)]
        return [
            Part(self.source, self.n_bytes // count, end - start) for start, end in pairwise(ends)
        ]


def parts_of(task: Packed) -> tuple[Part, ...]:
    return task.tasks


def test_small_stores_share_tasks_and_each_counts_for_the_cost_of_opening_it() -> None:
    stores = [Read(f"store-{number:03}", 600_000, 2_000) for number in range(100)]
    tasks = plan_tasks(stores, Limits(128 << 20))
    sizes = [len(parts_of(task)) for task in tasks]
    assert sizes == [27, 27, 27, 19]  # 27 times 600,000 bytes and 4 MiB are just below 128 MiB
    assert [part.store for task in tasks for part in parts_of(task)] == [
        store.source for store in stores
    ]


def test_portions_of_one_store_cost_its_opening_once() -> None:
    reads = [Read("store", 1_000, 10) for _ in range(500)]
    (task,) = plan_tasks(reads, Limits(128 << 20))
    assert len(parts_of(task)) == 500


def test_a_large_store_beside_small_ones_is_cut_as_if_it_were_alone() -> None:
    alone = plan_tasks([Read("large", 300 << 20, 10_000)], Limits(128 << 20))
    assert [len(parts_of(task)) for task in alone] == [1, 1, 1]
    tasks = plan_tasks(
        [Read("a", 100, 1), Read("large", 300 << 20, 10_000), Read("z", 100, 1)], Limits(128 << 20)
    )
    assert sorted([part.store for part in parts_of(task)] for task in tasks) == [
        ["a", "z"], ["large"], ["large"], ["large"],
    ]  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_packed_tasks_keep_the_limits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    reads = [
        Read(f"store-{number}", int(rng.integers(1, 1 << 24)), int(rng.integers(1, 1_000)))
        for number in range(int(rng.integers(1, 200)))
    ]
    total = sum(read.n_records or 0 for read in reads)
    limits = Limits(
        int(rng.integers(1 << 20, 1 << 26)),
        int(rng.integers(1, 2_000)) if rng.random() < 0.7 else None,
        int(rng.integers(1, 400)) if rng.random() < 0.7 else None,
    )
    tasks = [parts_of(task) for task in plan_tasks(reads, limits)]
    assert sum(part.n_records for task in tasks for part in task) == total
    assert len(tasks) >= min(limits.min_partitions or 1, total)
    for task in tasks:
        assert limits.max_records is None or sum(p.n_records for p in task) <= limits.max_records
        n_stores = len({part.store for part in task})
        n_bytes = sum(part.n_bytes for part in task) + n_stores * OPEN_COST
        assert len(task) == 1 or n_bytes <= limits.max_bytes


def test_there_are_as_many_tasks_as_requested_when_nearly_all_is_in_one_store() -> None:
    tiny = [Read(f"tiny-{number}", 1, 1) for number in range(3)]
    tasks = plan_tasks([Read("large", 1 << 20, 1_000), *tiny], Limits(UNLIMITED, None, 50))
    assert 50 <= len(tasks) <= 54
    assert max(part.n_records for task in tasks for part in parts_of(task)) <= 20


def test_what_cannot_be_counted_is_not_packed_if_records_are_limited() -> None:
    reads = [Read(f"store-{number}", 100, 5, is_counted=False) for number in range(3)]
    assert len(plan_tasks(reads, Limits(128 << 20, max_records=100))) == 3
    assert len(plan_tasks(reads, Limits(128 << 20))) == 1


def test_parts_of_the_log_that_lie_apart_share_a_task() -> None:
    parts = [
        SampledSpan(LogSlice(start, end, is_closed=True), end - start)
        for start, end in [(0, 10), (10, 30), (50, 60), (60, 90)]
    ]
    tasks = cut_log(parts, Limits(45))
    assert [[(part.log_slice.start, part.log_slice.end) for part in task] for task in tasks] == [
        [(0, 30), (50, 60)], [(60, 90)],
    ]  # fmt: skip
