"""What one look at the stores of a stream found, and what follows from it for offsets.

Its questions are the ends of queues, the place where each queue continues, and the messages that
were lost.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from pyspark_rmqstore.offsets import Key, StreamOffset, Weight
from pyspark_rmqstore.store_options import StoreRef
from rmqstore.errors import OffsetOutOfRangeError
from rmqstore.read.follower import TieredTail
from rmqstore.read.log_cursor import LogMark
from rmqstore.read.planning import rows_within, take_samples
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.tail import StoreTail
from rmqstore.spans import QueueSlice

logger = logging.getLogger(__name__)

_SAMPLES = 8  # of a queue, by which its backlog is weighed


class Followed(NamedTuple):
    """One store and its tail."""

    ref: StoreRef
    tail: StoreTail | TieredTail

    @property
    def store(self) -> StoreParts:
        return self.tail.store


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

    stores: Mapping[str, Followed]
    ends: Mapping[Key, int]
    marks: Mapping[str, LogMark]
    discovered: AbstractSet[Key]
    fail_on_data_loss: bool

    @classmethod
    def of(cls, stores: Mapping[str, Followed], *, fail_on_data_loss: bool) -> StreamSnapshot:
        """Return what the last look at each store found."""
        ends: dict[Key, int] = {}
        marks: dict[str, LogMark] = {}
        discovered: set[Key] = set()
        for broker, (_, tail) in stores.items():
            ends |= {(broker, *queue): end for queue, end in tail.ends.items()}
            discovered |= {(broker, *queue) for queue in tail.discovered}
            if tail.mark is not None:
                marks[broker] = tail.mark
        return cls(dict(stores), ends, marks, frozenset(discovered), fail_on_data_loss)

    @property
    def offset(self) -> StreamOffset:
        """The offset after all that was found."""
        return StreamOffset(self.ends, self.marks)

    def cut(self, since: StreamOffset) -> set[str]:
        """Return the brokers whose log was cut by a recovery since an offset was made."""
        return {
            broker
            for broker, mark in since.marks.items()
            if broker in self.stores and not self.stores[broker].tail.holds(mark)
        }

    def missing_brokers(self, since: StreamOffset) -> set[str]:
        """Return the brokers that an offset has messages of and the options do not name."""
        delivered = {key[0] for key in since.queues} | {*since.marks}
        return delivered - {*self.stores}

    def stops(self, until: StreamOffset, ends: Mapping[Key, int]) -> dict[Key, int]:
        """Return for each queue of ``ends`` where the messages before an offset end.

        Only messages that the store still holds count. If a recovery has cut the log since the
        offset was made, other messages may have replaced some of them. These belong after the
        offset.
        """
        cut = self.cut(until)
        stops = {}
        for key, end in ends.items():
            stop = min(end, self.ends.get(key, 0))
            broker, queue = key[0], key[1:]
            if broker in cut:
                mark = until.marks[broker]
                stop = min(stop, self.stores[broker].tail.first_after(queue, mark))
            stops[key] = stop
        return stops

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
        starts = {}
        for key, end in ends.items():
            broker = key[0]
            delivered = since.queues.get(key)
            is_cut = broker in cut
            if broker not in self.stores or (delivered == end and not is_cut):
                starts[key] = delivered or 0
            else:
                mark = since.marks.get(broker)
                starts[key] = self._start(key, delivered, end, mark, is_cut=is_cut)
        return starts

    def _start(
        self, key: Key, delivered: int | None, end: int, mark: LogMark | None, *, is_cut: bool
    ) -> int:
        broker, queue = key[0], key[1:]
        tail = self.stores[broker].tail
        start = delivered or 0
        queue_end = self.ends.get(key, 0)
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
            if delivered is not None or key in self.discovered:
                self.report_loss(key, text)
            else:
                logger.info("%s-%d of broker %s is new to this query: %s", *queue, broker, text)
        return max(start, first)

    def weight(self, key: Key, start: int, end: int) -> Weight:
        """Return an estimate of the messages of a queue between two offsets."""
        whole = QueueSlice(key[1], key[2], start, end)
        samples = take_samples(self.stores[key[0]].store, whole, _SAMPLES)
        if not samples:
            return Weight(0, 0)
        mean = sum(one.mean_bytes for one in samples) / len(samples)
        return Weight(mean * (end - start), samples[0].physical_offset)

    def rows_within(self, key: Key, start: int, end: int, n_bytes: int) -> int:
        """Return how many messages of a queue, from the first of a range on, fit into bytes."""
        whole = QueueSlice(key[1], key[2], start, end)
        return rows_within(self.stores[key[0]].store, whole, n_bytes)

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
                f"{text}; name all stores again, or go on without it by failOnDataLoss=false"
            )
        logger.warning("%s; going on without it", text)

    def report_loss(self, key: Key, text: str) -> None:
        """Raise an error for lost messages, or log a warning if ``failOnDataLoss`` is false.

        Raises:
            OffsetOutOfRangeError: ``failOnDataLoss`` is true.
        """
        broker, topic, queue_id = key
        text = f"data loss: {topic}-{queue_id} of broker {broker}: {text}"
        if self.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{text}; failOnDataLoss=false goes on with what is left")
        logger.warning("%s; going on with what is left", text)
