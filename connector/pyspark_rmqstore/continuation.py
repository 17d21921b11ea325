"""Where a stream continues after an offset, and what was lost before that."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark_rmqstore.offsets import Key, StreamOffset
from pyspark_rmqstore.stream_snapshot import FollowedPlace, Loss, StreamSnapshot
from rmqstore.read.log_mark import LogMark
from rmqstore.read.tail import replacements

logger = logging.getLogger(__name__)


class Continuation:
    """How the stores of a stream continue after one of its offsets.

    Its questions read the stores as they are now, and not only what the snapshot has. So they are
    asked within ``FollowedSource.answer``, which asks again if a store has changed since its look.

    Attributes:
        cut: the brokers whose log was cut by a recovery since the offset was made.
        replaced: where other messages begin in queues that lost messages before the offset.
    """

    def __init__(
        self, places: Mapping[str, FollowedPlace], snapshot: StreamSnapshot, since: StreamOffset
    ) -> None:
        self._places = places
        self._snapshot = snapshot
        self._since = since
        next_offsets = since.by_broker
        self.cut = {
            broker
            for broker, mark in since.marks.items()
            if broker in places and not places[broker].holds(mark, next_offsets.get(broker, {}))
        }
        self.replaced: dict[Key, int] = {}
        for broker in next_offsets.keys() & places.keys():
            self._find_replaced(broker, places[broker])

    def _find_replaced(self, broker: str, place: FollowedPlace) -> None:
        since, every = self._since, self._since.by_broker[broker]
        # Queues that are followed again: their messages lie at or before older marks.
        left = {key for key in since.left if key[0] == broker and key in self._snapshot.ends}
        apart = {key[1:]: since.left[key] for key in left & since.queues.keys()}
        next_offsets = {queue: at for queue, at in every.items() if queue not in apart}
        is_cut = broker in self.cut
        found = replacements(place.tail, next_offsets, since.marks.get(broker), is_cut=is_cut)
        for queue, mark in apart.items():
            alone = {queue: every[queue]}
            is_cut = not place.holds(mark, alone)
            found |= replacements(place.tail, alone, mark, is_cut=is_cut)
        self.replaced |= {(broker, *queue): begin for queue, begin in found.items()}

    def gone(self) -> set[Key]:
        """Return the queues before the offset that were deleted."""
        return {
            (broker, *queue)
            for broker, next_offsets in self._since.by_broker.items()
            if broker in self._places
            for queue in self._places[broker].tail.gone(next_offsets)
        }

    def withheld(self, *, is_once: bool) -> list[Loss]:
        """Return the messages after the offset that are there and nobody may read.

        Args:
            is_once: whether those are left out that were returned before.
        """
        next_offsets = self._since.by_broker
        return [
            Loss((broker, *queue), text)
            for broker, place in self._places.items()
            for queue, text in place.withheld(next_offsets.get(broker, {}), is_once=is_once).items()
        ]

    def starts(self, ends: Mapping[Key, int]) -> tuple[dict[Key, int], list[Loss]]:
        """Return where each queue continues, and what was lost before that.

        This is after what was delivered, unless that was cut off or deleted. Queues that the offset
        does not have start at their first message.

        Args:
            ends: how far each queue reaches.
        """
        starts: dict[Key, int] = {}
        losses: list[Loss] = []
        for key, end in ends.items():
            delivered = self._since.queues.get(key)
            starts[key] = delivered or 0
            if key[0] not in self._places or (delivered == end and key not in self.replaced):
                continue
            first = self._places[key[0]].tail.first(key[1:])
            if delivered is not None and key in self.replaced:
                # Delivered messages are not delivered again.
                starts[key] = begin = self.replaced[key]
                begins_again = begin <= first and key[0] not in self.cut
                text = _replacement(delivered, begin, begins_again=begins_again)
                losses.append(Loss(key, text))
            if starts[key] >= end and delivered is not None:
                continue
            if starts[key] < first:
                text = f"offsets {starts[key]} to {first} (excluded) were deleted unread"
                if delivered is not None or key in self._snapshot.discovered:
                    losses.append(Loss(key, text))
                else:
                    logger.info(
                        "%s-%d of broker %s is new to this query: %s", *key[1:], key[0], text
                    )
            starts[key] = max(starts[key], first)
        return starts, losses

    def stops(self, ends: Mapping[Key, int]) -> dict[Key, int]:
        """Return where the messages before the offset end in each queue.

        Only messages that the store still holds count. If a recovery has cut the log since the
        offset was made, or a topic was made again, other messages may have replaced some of them.
        These belong after the offset.
        """
        present, replaced = self._snapshot.ends, self.replaced
        return {
            key: min(end, present.get(key, 0), replaced.get(key, end)) for key, end in ends.items()
        }

    def offset(self, queues: Mapping[Key, int]) -> StreamOffset:
        """Return a later offset with these queue offsets."""
        since, snapshot = self._since, self._snapshot
        left: dict[Key, LogMark] = {}  # the marks of queues that are not followed
        for key in queues.keys() - snapshot.ends.keys():
            mark = since.mark_of(key)
            if queues[key] and mark is not None and (key in since.left or key[0] in self._places):
                left[key] = mark
        return StreamOffset(queues, self._marks(), left)

    def _marks(self) -> dict[str, LogMark]:
        """Return the newest record of each broker for a later offset.

        A query may have followed other queues before, whose messages are newer. A store whose
        newest record cannot be read has no mark: an older one would lie before its messages.
        """
        snapshot, marks = self._snapshot, {**self._since.marks}
        unmarked = {broker for (broker, *_), end in snapshot.ends.items() if end}
        for broker in unmarked - snapshot.marks.keys():
            marks.pop(broker, None)
        for broker, mark in snapshot.marks.items():
            before = marks.get(broker)
            stands = broker not in self.cut and self._places[broker].proves_marks
            marks[broker] = max(before, mark) if before is not None and stands else mark
        return marks


def _replacement(delivered: int, begin: int, *, begins_again: bool) -> str:
    """Return in words what replaced delivered messages from an offset on."""
    if begins_again:
        return (
            f"delivered up to offset {delivered}, but its messages are all newer than those: the "
            f"queue was deleted, as with its topic, and begins again at offset {begin}"
        )
    return f"delivered up to offset {delivered}, but a recovery cut it at {begin} since"
