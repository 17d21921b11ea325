"""The stores of a stream, by their files."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
    Set as AbstractSet,
)
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import pyarrow as pa

from pyspark_rmqstore.offsets import Key, StreamOffset, Weight
from pyspark_rmqstore.opened_stores import stores_to_read
from pyspark_rmqstore.stream_snapshot import Loss, StreamSnapshot, report
from pyspark_rmqstore.tasks import StoreTask
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.read.faults import refuse_spans
from rmqstore.read.last_record import LastRecord
from rmqstore.read.plan import queues_part
from rmqstore.read.read_spec import DROPMALFORMED, FAILFAST, ReadSpec
from rmqstore.read.reading import find_lost
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits, SampledSlice
from rmqstore.read.store_parts import StoreParts, open_ref, paths_of
from rmqstore.read.store_ref import StoreRef
from rmqstore.read.tail import StoreTail
from rmqstore.read.tailing import tail_of
from rmqstore.spans import QueueKey, QueueSlice
from rmqstore.storage.broker.broker_run import StoreSigns, queue_folders
from rmqstore.storage.broker.retry import Deletions, Recoveries, retry

logger = logging.getLogger(__name__)

_SAMPLES = 8  # of a queue, by which its backlog is weighed

T = TypeVar("T")


class FollowedStore(NamedTuple):
    """One store and its tail."""

    ref: StoreRef
    tail: StoreTail

    @property
    def store(self) -> StoreParts:
        return self.tail.store

    @property
    def proves_records(self) -> bool:
        return True

    def holds(self, record: LastRecord, _delivered: Mapping[QueueKey, int]) -> bool:
        """Return whether a record still stands, or was deleted as too old."""
        return self.tail.holds(record)

    def withheld(self, _delivered: Mapping[QueueKey, int], *, is_once: bool) -> dict[QueueKey, str]:
        """Return nothing: all that a store has can be read."""
        del is_once
        return {}

    def queue_slices(
        self, key: QueueKey, start: int, stop: int, request: ScanRequest
    ) -> list[QueueSlice]:
        """Return the parts of a range of a queue that are there."""
        spec = request.spec(self.store.broker_name)
        return self.store.store_queues.slices(key, start, stop, spec)

    def task_of(
        self, slices: list[QueueSlice], limits: Limits, last_record: LastRecord | None
    ) -> StoreTask:
        """Return the parts of queues' ranges up to a record, split within limits."""
        return StoreTask(queues_part(self.store, slices, limits, last_record), self.ref)


class AllSigns(NamedTuple):
    """The signs of several stores."""

    stores: tuple[StoreSigns, ...]

    @property
    def may_be_recovering(self) -> bool:
        return any(store.may_be_recovering for store in self.stores)


class FollowedStores:
    """Stores by broker name; see ``stream_snapshot.FollowedSource``.

    They are opened at the first use. All that they keep from one poll to the next are the tails,
    which make further polls cheap.
    """

    forgets_gone = True

    def __init__(self, stores: Sequence[StoreRef], request: ScanRequest) -> None:
        self._stores = stores
        self._request = request
        self._opened: dict[str, FollowedStore] = {}

    @cached_property
    def _refs(self) -> tuple[StoreRef, ...]:
        return stores_to_read(self._stores)

    @cached_property
    def _recoveries(self) -> Recoveries:
        return Recoveries(self._signs, lambda: self.invalidate(self._opened))

    def _retry(self, ask: Callable[[], T]) -> T:
        return retry(ask, Deletions(self), self._recoveries)

    def refresh(self) -> None:
        """List the files of all stores again."""
        for followed in self._opened.values():
            followed.store.refresh()

    def expect(self, brokers: AbstractSet[str]) -> None:
        """Take an only store whose files give no name for that of the only broker of an offset."""
        if len(brokers) != 1 or len(self._refs) != 1 or brokers <= self._opened.keys():
            return
        (name,), (ref,) = brokers, self._refs
        with open_ref(ref) as store:
            is_named = store.is_named
        if not is_named:
            self.close()
            self._refs = (replace(ref, broker_name=name),)

    def answer(self, ask: Callable[[StreamSnapshot], T]) -> T:
        """Poll, and return the answer to a question about what was found.

        Both are repeated while files are deleted, or a recovery changes a store.
        """
        return self._retry(lambda: ask(self.poll()))

    def initial(self) -> StreamOffset:
        """Return the offset at which the options start."""
        return self._retry(self._initial)

    def _initial(self) -> StreamOffset:
        request = self._request
        initial: dict[Key, int] = {}
        for broker, (_, tail) in self.followed.items():
            # it polls only after it has read the offsets of consumer groups
            starts = tail.store.ranges.starts(
                request.selection,
                broker,
                tail.spans,
                fail_on_data_loss=request.fail_on_data_loss,
            )
            initial |= {(broker, *queue): start for queue, start in starts.items()}
        snapshot = self.last_poll()
        return StreamOffset(initial, snapshot.last_records, first_records=snapshot.first_records)

    def poll(self) -> StreamSnapshot:
        """Look for changes in all stores."""
        for followed in self._opened.values():
            followed.tail.poll()
        return self.last_poll()

    def last_poll(self) -> StreamSnapshot:
        """Return what the last poll found; the first one if there was none."""
        return StreamSnapshot.of(self.followed)

    def weight(self, key: Key, start: int, end: int) -> Weight:
        """Return an estimate of the messages of a queue between two offsets."""
        queue_slice = QueueSlice(key[1], key[2], start, end)
        samples = self.followed[key[0]].store.sampler.sample(queue_slice, _SAMPLES)
        sampled = SampledSlice(queue_slice, samples).with_a_sample()
        return Weight(sampled.n_bytes, sampled.samples[0].physical_offset)

    def rows_within(self, key: Key, start: int, end: int, n_bytes: int) -> int:
        """Return how many messages of a queue, from the first of a range on, fit into bytes."""
        queue_slice = QueueSlice(key[1], key[2], start, end)
        return self.followed[key[0]].store.sampler.rows_within(queue_slice, n_bytes)

    def report_missing(self, brokers: Collection[str]) -> None:
        """Raise an error for brokers that the options do not name, or log a warning.

        Raises:
            OffsetOutOfRangeError: data loss is to fail.
        """
        text = (
            f"data loss: the query has read messages of broker {', '.join(sorted(brokers))}, "
            f"but its stores are of {', '.join(sorted(self.followed))}"
        )
        if self._request.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{text}; name all stores again, or continue without it by failOnDataLoss=false"
            )
        logger.warning("%s; continuing without it", text)

    def report_gone(self, queues: Mapping[Key, int]) -> None:
        """Report deleted queues, given the offsets up to which they were delivered.

        Raises:
            OffsetOutOfRangeError: there is one, and data loss is to fail.
        """
        losses = (
            Loss(
                key,
                f"it is deleted; whether it had messages from offset {delivered} on is not known",
            )
            for key, delivered in sorted(queues.items())
        )
        report(losses, fails=self._request.fail_on_data_loss)

    def invalidate(self, brokers: Iterable[str]) -> None:
        """Let the next poll cover all of the stores of some brokers."""
        for broker in brokers:
            self._opened[broker].tail.invalidate()

    def close(self) -> None:
        """Close the stores."""
        for followed in self._opened.values():
            followed.store.close()
        self._opened = {}

    def _signs(self) -> AllSigns:
        all_paths = [paths_of(ref) for ref in self._refs]
        return AllSigns(tuple(StoreSigns.of(paths, queue_folders(paths)) for paths in all_paths))

    @property
    def followed(self) -> Mapping[str, FollowedStore]:
        """The stores by broker name; each is polled when it is opened."""
        if not self._opened:
            opened: dict[str, FollowedStore] = {}
            request = self._request
            selection = request.selection
            # Damage of the log that may have held messages of recovered queues is refused as in a
            # batch read. A stream cannot have a row without a queue offset.
            mode = request.mode if request.mode == FAILFAST else DROPMALFORMED
            spec = ReadSpec(pa.schema([]), mode, fail_on_data_loss=request.fail_on_data_loss)
            for ref in self._refs:
                store = open_ref(ref)
                store.ranges.warn_unknown_topics(selection, "they are followed once they appear")
                store.warn_of_messages_elsewhere()
                followed = FollowedStore(ref, tail_of(store, selection))
                opened[store.broker_name] = followed
                followed.tail.poll()
                deque(refuse_spans(find_lost(store, (), spec), spec), maxlen=0)
            self._opened = opened
        return self._opened
