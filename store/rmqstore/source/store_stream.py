"""The stream of new messages of stores, by their files."""

from __future__ import annotations

from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set as AbstractSet,
)
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from rmqstore.query.damage import DROPMALFORMED, FAILFAST, READS_ON
from rmqstore.read.faults import refuse_spans
from rmqstore.read.last_record import LastRecord
from rmqstore.read.parts import NewestPart, Part
from rmqstore.read.plan import queues_part
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.reading import find_lost
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits, SampledSlice
from rmqstore.read.store_parts import open_ref, paths_of
from rmqstore.read.store_ref import StoreRef
from rmqstore.source.continuation import Loss
from rmqstore.source.stream import Stream, Weight
from rmqstore.source.stream_offset import Key, StreamOffset
from rmqstore.source.tail import StoreTail
from rmqstore.source.tasks import MicroBatchTask
from rmqstore.source.tiered_tail import tail_of
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.broker_run import StoreSigns, queue_folders
from rmqstore.storage.broker.retry import Deletions, Recoveries, retry

_SAMPLES = 8  # of a queue, by which its backlog is weighed

T = TypeVar("T")


class StoreStream(Stream[StoreTail]):
    """New messages of stores, which are opened at the first use."""

    forgets_gone = True

    def __init__(self, find: Callable[[], Sequence[StoreRef]], request: ScanRequest) -> None:
        """Follow nothing yet.

        Args:
            find: returns the stores, one of each broker.
            request: as ``Stream`` takes it.
        """
        super().__init__(request)
        self._find = find
        self._tails: dict[str, StoreTail] = {}
        self._ref_of: dict[str, StoreRef] = {}  # by broker
        self._reached: StreamOffset | None = None  # by messages()

    @cached_property
    def _refs(self) -> Sequence[StoreRef]:
        return self._find()

    @cached_property
    def _recoveries(self) -> Recoveries:
        return Recoveries(self._signs, lambda: self._invalidate(self._tails))

    def _signs(self) -> list[StoreSigns]:
        all_paths = [paths_of(ref) for ref in self._refs]
        return [StoreSigns.of(paths, queue_folders(paths)) for paths in all_paths]

    def _again(self, ask: Callable[[], T]) -> T:
        """Return an answer, asked again while files are deleted, or a recovery changes a store."""
        return retry(ask, Deletions(self), self._recoveries)

    def refresh(self) -> None:
        """List the files of all stores again."""
        for tail in self._tails.values():
            tail.store.refresh()

    def _expect(self, brokers: AbstractSet[str]) -> None:
        """Take an only store whose files give no name for that of the only broker of an offset."""
        if len(brokers) != 1 or len(self._refs) != 1 or brokers <= self._tails.keys():
            return
        (name,), (ref,) = brokers, self._refs
        with open_ref(ref) as store:
            is_named = store.is_named
        if not is_named:
            self.close()
            self._refs = (replace(ref, broker_name=name),)

    @property
    def tails(self) -> Mapping[str, StoreTail]:
        """The stores by broker name; each is polled when it is opened."""
        if not self._tails:
            refs: dict[str, StoreRef] = {}
            tails: dict[str, StoreTail] = {}
            request = self.request
            selection = request.selection
            # Damage of the log that may have held messages of recovered queues is refused as in a
            # batch read. A stream cannot have a row without a queue offset.
            mode = request.mode if request.mode == FAILFAST else DROPMALFORMED
            spec = ReadSpec(pa.schema([]), mode=mode, fail_on_data_loss=request.fail_on_data_loss)
            with ExitStack() as stack:
                for ref in self._refs:
                    store = stack.enter_context(open_ref(ref))
                    store.ranges.warn_unknown_topics(
                        selection, "they are followed once they appear"
                    )
                    store.warn_of_messages_elsewhere()
                    tail = tail_of(store, selection)
                    tail.poll()
                    deque(refuse_spans(find_lost(store, (), spec), spec), maxlen=0)
                    refs[store.broker_name], tails[store.broker_name] = ref, tail
                stack.pop_all()  # close() closes them
            self._ref_of, self._tails = refs, tails
        return self._tails

    def poll(self) -> None:
        """Look for changes in all stores that were opened already."""
        for tail in self._tails.values():
            tail.poll()

    def _initial_offset(self) -> StreamOffset:
        """Return the offset at which the request starts, as asked once."""
        request = self.request
        initial: dict[Key, int] = {}
        for broker, tail in self.tails.items():
            if request.last is not None:  # the newest messages are chosen from all
                starts = {key: first for key, (first, _) in tail.spans().items()}
            else:
                # it polls only after it has read the offsets of consumer groups
                starts = tail.store.ranges.starts(
                    request.selection,
                    broker,
                    tail.spans,
                    fail_on_data_loss=request.fail_on_data_loss,
                )
            initial |= {(broker, *queue): start for queue, start in starts.items()}
        return replace(self.found(), queues=initial)

    def messages(self) -> Iterator[pa.RecordBatch]:
        """Yield what was written since the last call, or since the start of the request.

        Raises:
            OffsetOutOfRangeError: messages were deleted, or cut off by a recovery, before they were
                read, and data loss is to fail.
        """
        since, last = self._reached, self.request.last if self._reached is None else None
        if since is None:
            since = self.initial_offset()

        def step(polled: StreamOffset) -> tuple[StreamOffset, dict[str, list[QueueSlice]]]:
            until = self._next_offset(polled, since, None, None)
            return until, {} if until is since else self.slices(polled, since, until)

        self._reached, slices = self.answer(step)
        for broker, of_broker in slices.items():
            store = self.tails[broker].store
            queues = queues_part(store, of_broker, None)
            part: Part = queues if last is None else NewestPart(queues, last)
            yield from self.request.returned(part.read(store, self.request))

    def _task(
        self, broker: str, slices: list[QueueSlice], limits: Limits, last_record: LastRecord | None
    ) -> MicroBatchTask:
        """Return what is read of ranges of a broker's queues, up to a record."""
        store = self.tails[broker].store
        part = queues_part(store, slices, limits, last_record)
        return MicroBatchTask(part, self._ref_of[broker])

    def weight(self, key: Key, start: int, end: int) -> Weight:
        """Return an estimate of the messages of a queue between two offsets."""
        queue_slice = QueueSlice(key[1], key[2], start, end)
        samples = self.tails[key[0]].store.sampler.sample(queue_slice, _SAMPLES)
        sampled = SampledSlice(queue_slice, samples).with_a_sample()
        return Weight(sampled.n_bytes, sampled.samples[0].physical_offset)

    def rows_within(self, key: Key, start: int, end: int, n_bytes: int) -> int:
        """Return how many messages of a queue, from the first of a range on, fit into bytes."""
        queue_slice = QueueSlice(key[1], key[2], start, end)
        return self.tails[key[0]].store.sampler.rows_within(queue_slice, n_bytes)

    def _report_missing(self, brokers: Collection[str]) -> None:
        """Raise an error for brokers that no store is of, or log a warning.

        Raises:
            OffsetOutOfRangeError: data loss is to fail.
        """
        self.request.report_loss(
            f"the query has read messages of broker {', '.join(sorted(brokers))}, "
            f"but its stores are of {', '.join(sorted(self.tails))}",
            f"name all stores again, or continue without it by {READS_ON}",
            "continuing without it",
        )

    def _report_gone(self, queues: Mapping[Key, int]) -> None:
        """Report deleted queues, given the offsets up to which they were delivered.

        Raises:
            OffsetOutOfRangeError: there is one, and data loss is to fail.
        """
        text = "it is deleted; whether it had messages from offset %d on is not known"
        self._report(Loss(key, text % delivered) for key, delivered in sorted(queues.items()))

    def _invalidate(self, brokers: Iterable[str]) -> None:
        """Let the next poll cover all of the stores of some brokers."""
        for broker in brokers:
            self._tails[broker].invalidate()

    def close(self) -> None:
        """Close the stores."""
        for tail in self._tails.values():
            tail.store.close()
        self._tails = {}
