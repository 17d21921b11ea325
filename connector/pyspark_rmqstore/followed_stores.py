"""The stores that one stream follows: how far they reach, where each queue continues, and which messages were lost."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import NamedTuple, TypeVar

import pyarrow as pa

from pyspark_rmqstore.offsets import Key, StreamOffset
from pyspark_rmqstore.options import ReadOptions, StoreRef
from pyspark_rmqstore.tasks import BrokerNames, open_ref, paths_of
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.read.log_cursor import LogMark
from rmqstore.read.scan.spec import FAILFAST, ReadSpec
from rmqstore.read.session import StoreSession
from rmqstore.read.tail import StoreTail
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.broker_run import StoreSigns, queue_folders
from rmqstore.storage.files.retry import ChangingStore

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Followed(NamedTuple):
    """One store and its tail."""

    ref: StoreRef
    tail: StoreTail

    @property
    def store(self) -> StoreSession:
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

    @cached_property
    def _changing(self) -> ChangingStore:
        return ChangingStore(self._signs, self._doubt)

    def answer(self, ask: Callable[[], T]) -> T:
        """Return the answer to a question about the stores, which is asked again while a recovery changes them."""
        return self._changing.answer(ask)

    def _signs(self) -> AllSigns:
        found = [paths_of(ref) for ref in self._options.stores]
        return AllSigns(tuple(StoreSigns.of(paths, queue_folders(paths)) for paths in found))

    def _doubt(self) -> None:
        for one in self._opened.values():
            one.tail.doubt()

    def __getitem__(self, broker: str) -> Followed:
        return self._all()[broker]

    def look(self) -> None:
        """Look for changes in all stores."""
        if self._opened:
            for one in self._opened.values():
                one.tail.look()
        else:
            self._all()

    def close(self) -> None:
        """Close the stores."""
        for one in self._opened.values():
            one.store.close()
        self._opened = {}

    def _all(self) -> dict[str, Followed]:
        if not self._opened:
            opened, names, selection = dict[str, Followed](), BrokerNames(), self._options.selection
            for ref in self._options.stores:
                store = open_ref(ref)
                names.add(store.broker_name, ref.path)
                store.warn_unknown_topics(selection, "they are followed once they appear")
                opened[store.broker_name] = one = Followed(ref, StoreTail(store, selection))
                one.tail.look()
                self._refuse_lost(store)
            self._opened = opened
        return self._opened

    def _refuse_lost(self, store: StoreSession) -> None:
        """Refuse, or report, damage of the log that may have held messages of queues that are taken from the log.

        Raises:
            CorruptRecordError, OffsetOutOfRangeError: as in a batch read.
        """
        options = self._options
        # A stream cannot have a row without a queue offset.
        mode = options.mode if options.mode == FAILFAST else "DROPMALFORMED"
        spec = ReadSpec(pa.schema([]), mode, fail_on_data_loss=options.fail_on_data_loss)
        deque(store.read_lost(store.lost((), spec), spec), maxlen=0)

    def ends(self) -> dict[Key, int]:
        """Return the end of each queue as of the last look."""
        return {
            (broker, *queue): end
            for broker, one in self._all().items()
            for queue, end in one.tail.ends.items()
        }

    def marks(self) -> dict[str, LogMark]:
        """Return the newest record of each store, as of the last look."""
        return {
            broker: one.tail.mark
            for broker, one in self._all().items()
            if one.tail.mark is not None
        }

    def initial(self) -> dict[Key, int]:
        """Return the offset in each queue at which the options start."""
        options = self._options
        return {
            (broker, *queue): start
            for broker, one in self._all().items()
            for queue, start in one.store.starts(
                options.selection, one.tail.spans, fail_on_data_loss=options.fail_on_data_loss
            ).items()
        }

    def cut(self, since: StreamOffset) -> set[str]:
        """Return the brokers whose log was cut by a recovery since an offset was made."""
        opened = self._all()
        return {
            broker
            for broker, mark in since.marks.items()
            if broker in opened and not opened[broker].tail.holds(mark)
        }

    def stops(self, until: StreamOffset, ends: Mapping[Key, int]) -> dict[Key, int]:
        """Return, for each queue of ``ends``, the end of the messages before an offset that the store still holds.

        If a recovery has cut the log since the offset was made, other messages may have replaced
        some of them. These belong after the offset.
        """
        opened, reached, cut = self._all(), self.ends(), self.cut(until)
        stops = {}
        for key, end in ends.items():
            stops[key] = min(end, reached.get(key, 0))
            if key[0] in cut:
                stops[key] = min(
                    stops[key], opened[key[0]].tail.first_after(key[1:], until.marks[key[0]])
                )
        return stops

    def look_confirmed(self, slices: Mapping[str, list[QueueSlice]]) -> bool:
        """Tell whether the logs confirm ranges of queues, by broker; the next look at one that does not covers all."""
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
        """Return where each queue of ``ends`` continues: after what was delivered, unless that was cut off or deleted.

        Args:
            since: how far messages were delivered. A queue that it does not name starts at its
                first message.
            ends: how far each queue reaches.
            cut: what :meth:`cut` returns for ``since``.

        Raises:
            OffsetOutOfRangeError: messages were lost, and ``failOnDataLoss`` is set.
        """
        opened = self._all()
        starts = {}
        for key, end in ends.items():
            delivered = since.queues.get(key)
            if key[0] not in opened or (delivered == end and key[0] not in cut):
                starts[key] = delivered or 0
            else:
                starts[key] = self._start(
                    key, delivered, end, since.marks.get(key[0]), is_cut=key[0] in cut
                )
        return starts

    def _start(
        self, key: Key, delivered: int | None, end: int, mark: LogMark | None, *, is_cut: bool
    ) -> int:
        tail, queue = self._all()[key[0]].tail, key[1:]
        reached, start = tail.ends.get(queue, 0), delivered or 0
        if delivered is not None and (is_cut or delivered > reached):
            if not is_cut and mark is not None and tail.began_after(queue, mark):
                # The queue was deleted with its messages and made again, and its offsets start
                # over.
                logger.warning(
                    "%s-%d of broker %s starts over at offset %d", *queue, key[0], tail.first(queue)
                )
                return tail.first(queue)
            # Delivered messages are not delivered again. Those that replaced them were all stored
            # after the mark.
            start = min(delivered, reached if mark is None else tail.first_after(queue, mark))
            if start < delivered:
                self.report_loss(
                    key,
                    f"delivered up to offset {delivered}, but a recovery cut it at {start} since",
                )
        if start >= end and delivered is not None:
            return start
        first = tail.first(queue)
        if start < first:
            text = f"offsets {start} to {first} (excluded) were deleted before they were read"
            if delivered is not None or queue in tail.discovered:
                self.report_loss(key, text)
            else:
                logger.info("%s-%d of broker %s is new to this query: %s", *queue, key[0], text)
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
