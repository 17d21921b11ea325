"""The stores that one stream follows.

They give the ends of queues, the place where each queue continues, and the messages that were lost.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import NamedTuple, TypeVar

import pyarrow as pa

from pyspark_rmqstore.offsets import Key, StreamOffset
from pyspark_rmqstore.opened_stores import open_ref, paths_of, stores_to_read
from pyspark_rmqstore.options import ReadOptions
from pyspark_rmqstore.store_options import StoreRef
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.read.follower import TieredTail, follow
from rmqstore.read.log_cursor import LogMark
from rmqstore.read.planning import find_starts
from rmqstore.read.reading import find_lost
from rmqstore.read.scan.faults import refuse_stretches
from rmqstore.read.scan.spec import FAILFAST, ReadSpec
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.tail import StoreTail
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.broker_run import StoreSigns, queue_folders
from rmqstore.storage.files.retry import ChangingStore

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Followed(NamedTuple):
    """One store and its tail."""

    ref: StoreRef
    tail: StoreTail | TieredTail

    @property
    def store(self) -> StoreParts:
        return self.tail.store


class AllSigns(NamedTuple):
    """The signs of several stores."""

    stores: tuple[StoreSigns, ...]

    @property
    def may_be_recovering(self) -> bool:
        return any(store.may_be_recovering for store in self.stores)


class FollowedStores:
    """Stores by broker name.

    They are opened at the first use, and their tails make further looks cheap.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._opened: dict[str, Followed] = {}
        self._missing: set[str] = set()  # brokers that were reported

    @cached_property
    def _refs(self) -> tuple[StoreRef, ...]:
        return stores_to_read(self._options.stores)

    @cached_property
    def _changing(self) -> ChangingStore:
        return ChangingStore(self._signs, self._doubt)

    def answer(self, ask: Callable[[], T]) -> T:
        """Return an answer; the question is asked again while a recovery changes a store."""
        return self._changing.answer(ask)

    def _signs(self) -> AllSigns:
        all_paths = [paths_of(ref) for ref in self._refs]
        return AllSigns(tuple(StoreSigns.of(paths, queue_folders(paths)) for paths in all_paths))

    def _doubt(self) -> None:
        for followed in self._opened.values():
            followed.tail.doubt()

    def __getitem__(self, broker: str) -> Followed:
        return self._all()[broker]

    def look(self) -> None:
        """Look for changes in all stores."""
        if self._opened:
            for followed in self._opened.values():
                followed.tail.look()
        else:
            self._all()

    def close(self) -> None:
        """Close the stores."""
        for followed in self._opened.values():
            followed.store.close()
        self._opened = {}

    def _all(self) -> dict[str, Followed]:
        if not self._opened:
            opened: dict[str, Followed] = {}
            options = self._options
            selection = options.selection
            # Damage of the log that may have held messages of recovered queues is refused as in a
            # batch read. A stream cannot have a row without a queue offset.
            mode = options.mode if options.mode == FAILFAST else "DROPMALFORMED"
            spec = ReadSpec(pa.schema([]), mode, fail_on_data_loss=options.fail_on_data_loss)
            for ref in self._refs:
                store = open_ref(ref)
                store.ranges.warn_unknown_topics(selection, "they are followed once they appear")
                store.warn_of_messages_elsewhere()
                followed = Followed(ref, follow(store, selection))
                opened[store.broker_name] = followed
                followed.tail.look()
                deque(refuse_stretches(find_lost(store, (), spec), spec), maxlen=0)
            self._opened = opened
        return self._opened

    def ends(self) -> dict[Key, int]:
        """Return the end of each queue as of the last look."""
        return {
            (broker, *queue): end
            for broker, followed in self._all().items()
            for queue, end in followed.tail.ends.items()
        }

    def marks(self) -> dict[str, LogMark]:
        """Return the newest record of each store, as of the last look."""
        return {
            broker: followed.tail.mark
            for broker, followed in self._all().items()
            if followed.tail.mark is not None
        }

    def initial(self) -> dict[Key, int]:
        """Return the offset in each queue at which the options start."""
        options = self._options
        initial: dict[Key, int] = {}
        for broker, (_, tail) in self._all().items():
            starts = find_starts(
                tail.store,
                options.selection,
                tail.spans,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            initial |= {(broker, *queue): start for queue, start in starts.items()}
        return initial

    def cut(self, since: StreamOffset) -> set[str]:
        """Return the brokers whose log was cut by a recovery since an offset was made."""
        opened = self._all()
        return {
            broker
            for broker, mark in since.marks.items()
            if broker in opened and not opened[broker].tail.holds(mark)
        }

    def require_brokers(self, since: StreamOffset) -> None:
        """Refuse or report brokers that an offset has messages of and the options do not name.

        Raises:
            OffsetOutOfRangeError: there is one, and ``failOnDataLoss`` is set.
        """
        delivered = {key[0] for key in since.queues} | {*since.marks}
        missing = sorted(delivered - {*self._all()} - self._missing)
        if not missing:
            return
        text = (
            f"data loss: the query has read messages of broker {', '.join(missing)}, "
            f"but its stores are of {', '.join(sorted(self._all()))}"
        )
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{text}; name all stores again, or go on without it by failOnDataLoss=false"
            )
        self._missing.update(missing)
        logger.warning("%s; going on without it", text)

    def stops(self, until: StreamOffset, ends: Mapping[Key, int]) -> dict[Key, int]:
        """Return for each queue of ``ends`` where the messages before an offset end.

        Only messages that the store still holds count. If a recovery has cut the log since the
        offset was made, other messages may have replaced some of them. These belong after the
        offset.
        """
        opened = self._all()
        cut = self.cut(until)
        current_ends = self.ends()
        stops = {}
        for key, end in ends.items():
            stop = min(end, current_ends.get(key, 0))
            broker, queue = key[0], key[1:]
            if broker in cut:
                mark = until.marks[broker]
                stop = min(stop, opened[broker].tail.first_after(queue, mark))
            stops[key] = stop
        return stops

    def look_confirmed(self, slices: Mapping[str, list[QueueSlice]]) -> bool:
        """Tell whether the logs confirm ranges of queues, by broker.

        The next look at a store whose log does not confirm them covers all of it.
        """
        wrong = [
            broker
            for broker, ranges in slices.items()
            if not self[broker].tail.look_confirmed(ranges)
        ]
        for broker in wrong:
            self[broker].tail.doubt()
        return not wrong

    def confirmed(self, slices: Mapping[str, list[QueueSlice]]) -> dict[str, list[QueueSlice]]:
        """Return the parts of ranges of queues, by broker, that the logs confirm."""
        return {broker: self[broker].tail.confirmed(ranges) for broker, ranges in slices.items()}

    def starts(
        self, since: StreamOffset, ends: Mapping[Key, int], cut: AbstractSet[str]
    ) -> dict[Key, int]:
        """Return where each queue of ``ends`` continues.

        This is after what was delivered, unless that was cut off or deleted.

        Args:
            since: how far messages were delivered. Other queues start at their first message.
            ends: how far each queue reaches.
            cut: what :meth:`cut` returns for ``since``.

        Raises:
            OffsetOutOfRangeError: messages were lost, and ``failOnDataLoss`` is set.
        """
        opened = self._all()
        starts = {}
        for key, end in ends.items():
            broker = key[0]
            delivered = since.queues.get(key)
            is_cut = broker in cut
            if broker not in opened or (delivered == end and not is_cut):
                starts[key] = delivered or 0
            else:
                mark = since.marks.get(broker)
                starts[key] = self._start(key, delivered, end, mark, is_cut=is_cut)
        return starts

    def _start(
        self, key: Key, delivered: int | None, end: int, mark: LogMark | None, *, is_cut: bool
    ) -> int:
        broker, queue = key[0], key[1:]
        tail = self._all()[broker].tail
        start = delivered or 0
        queue_end = tail.ends.get(queue, 0)
        if delivered is not None and (is_cut or delivered > queue_end):
            if not is_cut and mark is not None and tail.began_after(queue, mark):
                # The queue was deleted with its messages and made again, so its offsets start over.
                first = tail.first(queue)
                logger.warning("%s-%d of broker %s starts over at offset %d", *queue, broker, first)
                return first
            # Delivered messages are not delivered again. All messages that replaced them were
            # stored after the mark.
            replaced_from = queue_end if mark is None else tail.first_after(queue, mark)
            start = min(delivered, replaced_from)
            if start < delivered:
                text = f"delivered up to offset {delivered}, but a recovery cut it at {start} since"
                self.report_loss(key, text)
        if start >= end and delivered is not None:
            return start
        first = tail.first(queue)
        if start < first:
            text = f"offsets {start} to {first} (excluded) were deleted before they were read"
            if delivered is not None or queue in tail.discovered:
                self.report_loss(key, text)
            else:
                logger.info("%s-%d of broker %s is new to this query: %s", *queue, broker, text)
        return max(start, first)

    def report_loss(self, key: Key, text: str) -> None:
        """Raise an error for lost messages, or log a warning if ``failOnDataLoss`` is false.

        Raises:
            OffsetOutOfRangeError: ``failOnDataLoss`` is true.
        """
        broker, topic, queue_id = key
        text = f"data loss: {topic}-{queue_id} of broker {broker}: {text}"
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{text}; failOnDataLoss=false goes on with what is left")
        logger.warning("%s; going on with what is left", text)
