"""Following queues while their messages move to tiered storage: each message comes once."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem

import rmqstore
import tiers
from goldens import Golden
from reading import by_queue, read, rows
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.query.selection import Selection, parse_selection
from rmqstore.read.last_record import LastRecord
from rmqstore.read.read_spec import ReadSpec, scan_schema
from rmqstore.read.reading import read_queues
from rmqstore.read.store_parts import StoreParts, open_parts, paths_of
from rmqstore.read.store_ref import StoreRef
from rmqstore.source.tail import StoreTail
from rmqstore.source.tiered_tail import TieredTail, tail_of
from rmqstore.spans import QueueSlice
from rmqstore.storage.files.remote_location import locate
from tier_builder import KEYS, Key, TieringBroker

SPEC = ReadSpec(scan_schema("topic,queueId,queueOffset,body", include_pending=False))


@pytest.fixture
def broker(tmp_path: Path) -> TieringBroker:
    return TieringBroker(tmp_path)


def offsets_in(slices: list[QueueSlice]) -> set[tuple[str, int, int]]:
    return {
        (piece.topic, piece.queue_id, queue_offset)
        for piece in slices
        for queue_offset in range(piece.start, piece.end)
    }


def starts_of(parts: StoreParts, selection: Selection, tail: StoreTail) -> dict[Key, int]:
    return parts.ranges.starts(selection, parts.broker_name, tail.spans, fail_on_data_loss=True)


class Reader:
    """Follows a store as a stream does, from its first message on."""

    def __init__(self, broker: TieringBroker, path: Path, **options: object) -> None:
        self._broker = broker
        self.parts = open_parts(path, **options)
        self.tail = tail_of(self.parts, parse_selection())
        self.next = {key: start for key, (start, _) in self.tail.spans().items()}
        self.delivered: dict[Key, list[tuple[int, bytes]]] = {}

    def plan(self) -> list[QueueSlice]:
        self.tail.poll()
        slices = []
        for key, end in sorted(self.tail.ends.items()):
            start = max(self.next.get(key, 0), self.tail.first(key))
            if start < end:
                slices += self.parts.store_queues.slices(key, start, end, SPEC)
                self.next[key] = end
        return slices

    def read(self, slices: list[QueueSlice]) -> None:
        assert self.tail.are_confirmed(slices)
        # Since the plan more of a range may have moved, so it may have more parts.
        confirmed = self.tail.confirmed(slices)
        assert offsets_in(confirmed) == offsets_in(slices)
        for row in rows(read_queues(self.parts, slices, SPEC)):
            found = self.delivered.setdefault((row["topic"], row["queueId"]), [])
            found.append((row["queueOffset"], row["body"].strip()))

    def expected(self) -> dict[Key, list[tuple[int, bytes]]]:
        return {key: [*enumerate(sent)] for key, sent in self._broker.sent.items() if sent}


@pytest.mark.parametrize("seed", tiers.seeds(8))
def test_each_message_comes_once_wherever_it_is(broker: TieringBroker, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(6):
        broker.put(rng.choice(KEYS), rng.randrange(1, 40))
    broker.expire()
    reader = Reader(broker, broker.root, tiered=broker.tier)
    assert isinstance(reader.tail, TieredTail)
    for _ in range(8):
        for _ in range(rng.randrange(3)):
            broker.put(rng.choice(KEYS), rng.randrange(1, 30))
        if rng.random() < 0.3:
            broker.upload(rng.choice(KEYS), rng.randrange(1, 20))
        if rng.random() < 0.3:
            broker.expire()
        slices = reader.plan()
        if rng.random() < 0.4:
            broker.expire()  # after the plan, before the read
            reader.parts.refresh()
        reader.read(slices)
    reader.read(reader.plan())
    assert reader.delivered == reader.expected()


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
def test_a_tier_alone_is_followed_as_it_grows(broker: TieringBroker, is_remote: bool) -> None:
    for number in range(5):
        broker.put(KEYS[number % 2], 10)
    broker.upload(KEYS[0], 12)
    path, storage = locate(broker.tier, None, LocalFileSystem() if is_remote else None)
    reader = Reader(broker, path, storage=storage)
    reader.read(reader.plan())
    assert len(reader.delivered[KEYS[0]]) == 12
    assert reader.plan() == []
    for key in KEYS[:2]:
        broker.upload(key)
        reader.read(reader.plan())
    assert reader.delivered == reader.expected()
    assert reader.tail.last_record is None
    assert reader.tail.discovered == set()
    broker.put(KEYS[2], 3)
    broker.upload(KEYS[2])
    reader.read(reader.plan())
    assert reader.delivered == reader.expected()


def test_times_and_offsets_tell_where_a_stream_starts(broker: TieringBroker) -> None:
    for _ in range(4):
        broker.put(KEYS[0], 20)
    broker.expire()
    with rmqstore.open(broker.root, tiered=broker.tier) as store:
        stored = [row["storeTimestamp"] for row in by_queue(read(store))[KEYS[0]]]
    with open_parts(broker.root, tiered=broker.tier) as parts:
        tail = tail_of(parts, parse_selection())
        for number in (0, 15, 45, 79):
            time = stored[number]
            selection = parse_selection(starting_timestamp=time, streaming=True)
            starts = starts_of(parts, selection, tail)
            assert starts[KEYS[0]] == stored.index(time)
        chosen = parse_selection(starting_offsets={"A": {"0": 7}}, streaming=True)
        assert starts_of(parts, chosen, tail)[KEYS[0]] == 7
        n_bytes = parts.store_queues.n_bytes(*KEYS[0], 0, 80)
        whole = QueueSlice(*KEYS[0], 0, 80)
        assert parts.sampler.rows_within(whole, 1 << 30) == 80
        assert parts.sampler.rows_within(whole, n_bytes // 2) in range(30, 50)
        assert parts.sampler.rows_within(whole, 10) == 0
        assert parts.ranges.still_holds(whole)


def test_what_a_recovery_cuts_off_is_not_in_tiered_storage(broker: TieringBroker) -> None:
    broker.put(KEYS[0], 60)
    broker.expire()
    broker.put(KEYS[1], 5)
    reader = Reader(broker, broker.root, tiered=broker.tier)
    start, end = reader.tail.spans()[KEYS[0]]
    assert (start, end) == (0, 60)
    local_start = reader.parts.queues.first(*KEYS[0])
    assert local_start is not None
    before_all = LastRecord(reader.parts.log.min_offset - 1, 0)
    assert reader.tail.first_after(KEYS[0], before_all) == local_start
    assert reader.tail.first_behind(KEYS[0], before_all) == local_start
    assert reader.tail.first_behind(KEYS[0], LastRecord(1 << 40, 0)) == 60
    assert reader.tail.replaced({KEYS[0]: 60, KEYS[1]: 6}, before_all) == {KEYS[0], KEYS[1]}
    assert reader.tail.replaced({KEYS[0]: local_start}, before_all) == set()
    assert reader.tail.first_after(KEYS[0], LastRecord(1 << 40, 1 << 60)) == 60
    shutil.rmtree(broker.root / "consumequeue" / "A")
    table = broker.root / "config" / "topics.json"  # which says that the topic was deleted
    table.parent.mkdir(exist_ok=True)
    table.write_text('{"topicConfigTable": {"B": {}}}')
    reader = Reader(broker, broker.root, tiered=broker.tier)
    assert reader.tail.spans()[KEYS[0]] == (0, 60)
    assert reader.tail.first_after(KEYS[0], before_all) == 60
    assert reader.tail.first_behind(KEYS[0], before_all) == 60
    assert reader.tail.replaced({KEYS[0]: 60}, before_all) == set()


def test_messages_that_are_in_neither_are_a_loss(broker: TieringBroker) -> None:
    broker.put(KEYS[0], 10)
    broker.upload(KEYS[0])
    broker.put(KEYS[0], 60)
    for file in sorted((broker.root / "commitlog").iterdir())[:-1]:
        file.unlink()
    reader = Reader(broker, broker.root, tiered=broker.tier)
    with pytest.raises(OffsetOutOfRangeError, match=r"queue offsets 10 to \d+ .* are gone"):
        reader.plan()
    spec = replace(SPEC, fail_on_data_loss=False)
    before, after = reader.parts.store_queues.slices(KEYS[0], 0, 70, spec)
    assert (before.start, before.end, after.end) == (0, 10, 70)
    assert after.start == reader.parts.queues.first(*KEYS[0])


def test_a_store_without_a_tier_has_a_plain_tail(golden_store: Golden) -> None:
    root = golden_store("tiered")
    with open_parts(root) as parts:
        assert isinstance(tail_of(parts, parse_selection()), StoreTail)
    assert paths_of(StoreRef(str(root))).root == root
    assert not paths_of(StoreRef(str(root / "tieredstore"))).has_abort
