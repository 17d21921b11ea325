"""The stores of a stream, and the snapshot that a look at them gives.

Every question of planning is a method of the snapshot: where queues end, where each of them
continues, and which messages were lost.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from pyspark_rmqstore.offsets import Key, StreamOffset, Weight
from pyspark_rmqstore.opened_stores import open_ref, paths_of, stores_to_read
from pyspark_rmqstore.store_options import StoreRef
from pyspark_rmqstore.tasks import StoreTask, Task
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.read.faults import refuse_spans
from rmqstore.read.limits import Limits
from rmqstore.read.log_mark import LogMark
from rmqstore.read.plan import queues_part
from rmqstore.read.read_spec import DROPMALFORMED, FAILFAST, ReadSpec
from rmqstore.read.reading import find_lost
from rmqstore.read.request import ScanRequest
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.tail import StoreTail, Tail, replacements
from rmqstore.read.tailing import TieredTail, tail_of
from rmqstore.spans import QueueKey, QueueSlice
from rmqstore.storage.broker.broker_run import StoreSigns, queue_folders
from rmqstore.storage.broker.retry import Deletions, Recoveries, retry

logger = logging.getLogger(__name__)

_SAMPLES = 8  # of a queue, by which its backlog is weighed

T = TypeVar("T")


class FollowedPlace(Protocol):
    """A store or a running broker that a stream follows."""

    @property
    def tail(self) -> Tail: ...

    def holds(self, mark: LogMark, reached: Mapping[QueueKey, int]) -> bool:
        """Return whether the record of a mark still stands, or was deleted as too old.

        Args:
            mark: the newest record at some time.
            reached: how far queues reached then, or less far.
        """
        ...

    def pieces(
        self, key: QueueKey, start: int, stop: int, request: ScanRequest
    ) -> list[QueueSlice]: ...

    def task_of(self, slices: list[QueueSlice], limits: Limits, mark: LogMark | None) -> Task: ...


class Followed(NamedTuple):
    """One store and its tail."""

    ref: StoreRef
    tail: StoreTail | TieredTail

    @property
    def store(self) -> StoreParts:
        return self.tail.store

    def holds(self, mark: LogMark, _reached: Mapping[QueueKey, int]) -> bool:
        """Return whether the record of a mark still stands, or was deleted as too old."""
        return self.tail.holds(mark)

    def pieces(
        self, key: QueueKey, start: int, stop: int, request: ScanRequest
    ) -> list[QueueSlice]:
        """Return the parts of a range of a queue that are there."""
        spec = request.spec(self.store.broker_name)
        return self.store.store_queues.slices(key, start, stop, spec)

    def task_of(self, slices: list[QueueSlice], limits: Limits, mark: LogMark | None) -> StoreTask:
        """Return what is read of ranges of queues up to a mark, which is split within limits."""
        return StoreTask(queues_part(self.store, slices, limits, mark), self.ref)


class Loss(NamedTuple):
    """Messages that are lost to a stream."""

    key: Key
    text: str


@dataclass(frozen=True)
class StreamSnapshot:
    """What one look at all stores of a stream found.

    Questions about single messages read the files, which are those of this look until the next one.

    Attributes:
        stores: the stores by broker name.
        ends: the end of each queue.
        marks: the newest record of each store that has one, by broker.
        discovered: queues that were not there at the first look.
        fail_on_data_loss: whether lost messages are an error; they are a warning otherwise.
    """

    stores: Mapping[str, FollowedPlace]
    ends: Mapping[Key, int]
    marks: Mapping[str, LogMark]
    discovered: AbstractSet[Key]
    fail_on_data_loss: bool
    forgets_gone: ClassVar[bool] = True  # whether a queue that is gone starts over if it comes back

    @classmethod
    def of(cls, stores: Mapping[str, FollowedPlace], *, fail_on_data_loss: bool) -> StreamSnapshot:
        """Return what the last look at each store found."""
        ends: dict[Key, int] = {}
        marks: dict[str, LogMark] = {}
        discovered: set[Key] = set()
        for broker, place in stores.items():
            tail = place.tail
            ends |= {(broker, *queue): end for queue, end in tail.ends.items()}
            discovered |= {(broker, *queue) for queue in tail.discovered}
            if tail.mark is not None:
                marks[broker] = tail.mark
        return cls(dict(stores), ends, marks, frozenset(discovered), fail_on_data_loss)

    def offset_after(
        self, since: StreamOffset, queues: Mapping[Key, int], cut: AbstractSet[str]
    ) -> StreamOffset:
        """Return an offset after another one.

        Args:
            since: the offset before.
            queues: the queue offsets of the new one.
            cut: what :meth:`cut` returns for the one before.
        """
        left: dict[Key, LogMark] = {}  # the marks of queues that are not followed
        for key in queues.keys() - self.ends.keys():
            mark = since.mark_of(key)
            if queues[key] and mark is not None and (key in since.left or key[0] in self.stores):
                left[key] = mark
        return StreamOffset(queues, self._marks_after(since, cut), left)

    def _marks_after(self, since: StreamOffset, cut: AbstractSet[str]) -> dict[str, LogMark]:
        """Return the newest record of each broker for an offset after another one.

        A query may have followed other queues before, whose messages are newer. A store whose
        newest record cannot be read has no mark: an older one would lie before its messages.

        Args:
            since: the offset before.
            cut: what :meth:`cut` returns for it.
        """
        marks = {**since.marks}
        unmarked = {broker for (broker, *_), end in self.ends.items() if end} - self.marks.keys()
        for broker in unmarked:
            marks.pop(broker, None)
        for broker, mark in self.marks.items():
            before = marks.get(broker)
            marks[broker] = mark if before is None or broker in cut else max(before, mark)
        return marks

    @property
    def offset(self) -> StreamOffset:
        """The offset after all that was found."""
        return StreamOffset(self.ends, self.marks)

    def cut(self, since: StreamOffset) -> set[str]:
        """Return the brokers whose log was cut by a recovery since an offset was made."""
        reached = since.by_broker
        return {
            broker
            for broker, mark in since.marks.items()
            if broker in self.stores
            and not self.stores[broker].holds(mark, reached.get(broker, {}))
        }

    def replaced(self, since: StreamOffset, cut: AbstractSet[str]) -> dict[Key, int]:
        """Return where other messages begin in queues that lost messages before an offset.

        Args:
            since: the offset.
            cut: what :meth:`cut` returns for it.
        """
        begins: dict[Key, int] = {}
        for broker, every in since.by_broker.items():
            place = self.stores.get(broker)
            if place is None:
                continue
            # Queues that are followed again: their messages lie at or before older marks.
            left = {key for key in since.left if key[0] == broker and key in self.ends}
            apart = {key[1:]: since.left[key] for key in left & since.queues.keys()}
            reached = every
            if apart:
                reached = {queue: at for queue, at in every.items() if queue not in apart}
            found = replacements(place.tail, reached, since.marks.get(broker), is_cut=broker in cut)
            for queue, mark in apart.items():
                alone = {queue: since.queues[broker, *queue]}
                is_cut = not place.holds(mark, alone)
                found |= replacements(place.tail, alone, mark, is_cut=is_cut)
            begins |= {(broker, *queue): begin for queue, begin in found.items()}
        return begins

    def gone(self, since: StreamOffset) -> set[Key]:
        """Return the queues before an offset that were deleted."""
        return {
            (broker, *queue)
            for broker, reached in since.by_broker.items()
            if broker in self.stores
            for queue in self.stores[broker].tail.gone(reached)
        }

    def stops(self, until: StreamOffset, ends: Mapping[Key, int]) -> dict[Key, int]:
        """Return for each queue of ``ends`` where the messages before an offset end.

        Only messages that the store still holds count. If a recovery has cut the log since the
        offset was made, or a topic was made again, other messages may have replaced some of them.
        These belong after the offset.
        """
        asked = StreamOffset({key: until.queues[key] for key in ends}, until.marks, until.left)
        replaced = self.replaced(asked, self.cut(until))
        return {
            key: min(end, self.ends.get(key, 0), replaced.get(key, end))
            for key, end in ends.items()
        }

    def starts(
        self,
        since: StreamOffset,
        ends: Mapping[Key, int],
        replaced: Mapping[Key, int],
        cut: AbstractSet[str],
    ) -> tuple[dict[Key, int], list[Loss]]:
        """Return where each queue of ``ends`` continues, and what was lost before that.

        This is after what was delivered, unless that was cut off or deleted.

        Args:
            since: how far messages were delivered. Other queues start at their first message.
            ends: how far each queue reaches.
            replaced: what :meth:`replaced` returns for ``since``.
            cut: what :meth:`cut` returns for it.
        """
        starts: dict[Key, int] = {}
        losses: list[Loss] = []
        for key, end in ends.items():
            delivered = since.queues.get(key)
            starts[key] = delivered or 0
            if key[0] not in self.stores or (delivered == end and key not in replaced):
                continue
            first = self.stores[key[0]].tail.first(key[1:])
            if delivered is not None and key in replaced:
                # Delivered messages are not delivered again.
                starts[key] = replaced[key]
                begins_again = replaced[key] <= first and key[0] not in cut
                losses.append(
                    Loss(key, _replacement(delivered, replaced[key], begins_again=begins_again))
                )
            if starts[key] >= end and delivered is not None:
                continue
            if starts[key] < first:
                text = f"offsets {starts[key]} to {first} (excluded) were deleted unread"
                if delivered is not None or key in self.discovered:
                    losses.append(Loss(key, text))
                else:
                    logger.info(
                        "%s-%d of broker %s is new to this query: %s", *key[1:], key[0], text
                    )
            starts[key] = max(starts[key], first)
        return starts, losses

    def weight(self, key: Key, start: int, end: int) -> Weight:
        """Return an estimate of the messages of a queue between two offsets."""
        whole = QueueSlice(key[1], key[2], start, end)
        samples = self._store(key).sampler.sample(whole, _SAMPLES)
        if not samples:
            return Weight(0, 0)
        mean = sum(one.mean_bytes for one in samples) / len(samples)
        return Weight(mean * (end - start), samples[0].physical_offset)

    def rows_within(self, key: Key, start: int, end: int, n_bytes: int) -> int:
        """Return how many messages of a queue, from the first of a range on, fit into bytes."""
        whole = QueueSlice(key[1], key[2], start, end)
        return self._store(key).sampler.rows_within(whole, n_bytes)

    def _store(self, key: Key) -> StoreParts:
        followed = self.stores[key[0]]
        assert isinstance(followed, Followed), "running brokers are not asked for bytes"
        return followed.store

    def unconfirmed(self, slices: Mapping[str, list[QueueSlice]]) -> set[str]:
        """Return the brokers whose logs do not confirm ranges of queues, given by broker."""
        return {
            broker
            for broker, ranges in slices.items()
            if not self.stores[broker].tail.look_confirmed(ranges)
        }

    def confirmed(self, slices: Mapping[str, list[QueueSlice]]) -> dict[str, list[QueueSlice]]:
        """Return the parts of ranges of queues, by broker, that the logs confirm."""
        return {
            broker: self.stores[broker].tail.confirmed(ranges) for broker, ranges in slices.items()
        }

    def report_missing(self, brokers: Collection[str]) -> None:
        """Raise an error for brokers that are missing, or log a warning; see :meth:`report_loss`.

        Raises:
            OffsetOutOfRangeError: ``failOnDataLoss`` is true.
        """
        text = (
            f"data loss: the query has read messages of broker {', '.join(sorted(brokers))}, "
            f"but its stores are of {', '.join(sorted(self.stores))}"
        )
        if self.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{text}; name all stores again, or continue without it by failOnDataLoss=false"
            )
        logger.warning("%s; continuing without it", text)

    def report_gone(self, queues: Mapping[Key, int]) -> None:
        """Report queues that are not there any more, given how far they were delivered.

        Raises:
            OffsetOutOfRangeError: there is one, and ``failOnDataLoss`` is true.
        """
        self.report(
            Loss(
                key,
                f"it is deleted; whether it had messages from offset {delivered} on is not known",
            )
            for key, delivered in sorted(queues.items())
        )

    def report(self, losses: Iterable[Loss]) -> None:
        """Raise an error for lost messages, or log a warning if ``failOnDataLoss`` is false.

        Raises:
            OffsetOutOfRangeError: ``failOnDataLoss`` is true.
        """
        for (broker, topic, queue_id), what in losses:
            text = f"data loss: {topic}-{queue_id} of broker {broker}: {what}"
            if self.fail_on_data_loss:
                raise OffsetOutOfRangeError(
                    f"{text}; failOnDataLoss=false continues with what is left"
                )
            logger.warning("%s; continuing with what is left", text)


def _replacement(delivered: int, begin: int, *, begins_again: bool) -> str:
    """Return in words what replaced delivered messages from an offset on."""
    if begins_again:
        return (
            f"delivered up to offset {delivered}, but its messages are all newer than those: the "
            f"queue was deleted, as with its topic, and begins again at offset {begin}"
        )
    return f"delivered up to offset {delivered}, but a recovery cut it at {begin} since"


class FollowedSource(Protocol):
    """The stores or the running brokers of a stream; see :class:`FollowedStores`."""

    def answer(self, ask: Callable[[StreamSnapshot], T]) -> T: ...
    def initial(self) -> StreamOffset: ...
    def look(self) -> StreamSnapshot: ...
    def last_look(self) -> StreamSnapshot: ...
    def doubt(self, brokers: Iterable[str]) -> None: ...
    def close(self) -> None: ...


class AllSigns(NamedTuple):
    """The signs of several stores."""

    stores: tuple[StoreSigns, ...]

    @property
    def may_be_recovering(self) -> bool:
        return any(store.may_be_recovering for store in self.stores)


class FollowedStores:
    """Stores by broker name.

    They are opened at the first use. All that they keep from one look to the next are the tails,
    which make further looks cheap.
    """

    def __init__(self, stores: Sequence[StoreRef], request: ScanRequest) -> None:
        self._stores, self._request = stores, request
        self._opened: dict[str, Followed] = {}

    @cached_property
    def _refs(self) -> tuple[StoreRef, ...]:
        return stores_to_read(self._stores)

    @cached_property
    def _recoveries(self) -> Recoveries:
        return Recoveries(self._signs, lambda: self.doubt(self._opened))

    def _retry(self, ask: Callable[[], T]) -> T:
        return retry(ask, Deletions(self), self._recoveries)

    def refresh(self) -> None:
        """List the files of all stores again."""
        for followed in self._opened.values():
            followed.store.refresh()

    def answer(self, ask: Callable[[StreamSnapshot], T]) -> T:
        """Look, and return the answer to a question about what was found.

        Both are repeated while files are deleted, or a recovery changes a store.
        """
        return self._retry(lambda: ask(self.look()))

    def initial(self) -> StreamOffset:
        """Return the offset at which the options start."""
        return self._retry(self._initial)

    def _initial(self) -> StreamOffset:
        request = self._request
        initial: dict[Key, int] = {}
        for broker, (_, tail) in self._all().items():
            # it looks only after it has read the offsets of consumer groups
            starts = tail.store.ranges.starts(
                request.selection,
                broker,
                tail.spans,
                fail_on_data_loss=request.fail_on_data_loss,
            )
            initial |= {(broker, *queue): start for queue, start in starts.items()}
        return StreamOffset(initial, self.last_look().marks)

    def look(self) -> StreamSnapshot:
        """Look for changes in all stores."""
        for followed in self._opened.values():
            followed.tail.look()
        return self.last_look()

    def last_look(self) -> StreamSnapshot:
        """Return what the last look found; the first one if there was none."""
        return StreamSnapshot.of(self._all(), fail_on_data_loss=self._request.fail_on_data_loss)

    def doubt(self, brokers: Iterable[str]) -> None:
        """Let the next look cover all of the stores of some brokers."""
        for broker in brokers:
            self._opened[broker].tail.doubt()

    def close(self) -> None:
        """Close the stores."""
        for followed in self._opened.values():
            followed.store.close()
        self._opened = {}

    def _signs(self) -> AllSigns:
        all_paths = [paths_of(ref) for ref in self._refs]
        return AllSigns(tuple(StoreSigns.of(paths, queue_folders(paths)) for paths in all_paths))

    def _all(self) -> dict[str, Followed]:
        """Return the stores by broker name; each is looked at when it is opened."""
        if not self._opened:
            opened: dict[str, Followed] = {}
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
                followed = Followed(ref, tail_of(store, selection))
                opened[store.broker_name] = followed
                followed.tail.look()
                deque(refuse_spans(find_lost(store, (), spec), spec), maxlen=0)
            self._opened = opened
        return self._opened
