"""The continuation of a stream after an offset, and the losses before it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark_rmqstore.offsets import Key, StreamOffset
from pyspark_rmqstore.stream_snapshot import Followed, Loss, StreamSnapshot
from rmqstore.read.last_record import LastRecord
from rmqstore.read.tail import continued, replacements

logger = logging.getLogger(__name__)


class Continuation:
    """How the stores of a stream continue after one of its offsets.

    Its questions read the stores as they are now, and not only what the snapshot has. So they are
    asked within ``FollowedSource.answer``, which asks again if a store has changed since its poll.

    Attributes:
        cut: the brokers whose log was cut by a recovery since the offset was made.
        others: those of them whose log begins with another record: other stores.
        replaced: where other messages begin in queues that lost messages before the offset.
    """

    def __init__(
        self, followed: Mapping[str, Followed], snapshot: StreamSnapshot, since: StreamOffset
    ) -> None:
        self._followed = followed
        self._snapshot = snapshot
        self._since = since
        self.cut = {
            broker
            for broker, record in since.last_records.items()
            if broker in followed
            and not followed[broker].holds(record, since.by_broker.get(broker, {}))
        }
        self.others = {
            broker
            for broker in self.cut & since.first_records.keys()
            if not followed[broker].holds(since.first_records[broker], {})
        }
        self.replaced: dict[Key, int] = {}
        for broker in since.by_broker.keys() & followed.keys():
            store = followed[broker]
            of_broker = since.by_broker[broker]
            # Queues that are followed again: their messages lie at or before older records.
            left = {key for key in since.left if key[0] == broker and key in snapshot.ends}
            apart = {key[1:]: since.left[key] for key in left & since.queues.keys()}
            delivered = {queue: end for queue, end in of_broker.items() if queue not in apart}
            last_record = since.last_records.get(broker)
            is_cut = broker in self.cut
            is_other = broker in self.others
            found = replacements(
                store.tail, delivered, last_record, is_cut=is_cut, is_replaced=is_other
            )
            for queue, record in apart.items():
                alone = {queue: of_broker[queue]}
                is_cut = not store.holds(record, alone)
                found |= replacements(
                    store.tail, alone, record, is_cut=is_cut, is_replaced=is_other
                )
            self.replaced |= {(broker, *queue): begin for queue, begin in found.items()}

    def gone(self) -> set[Key]:
        """Return the queues before the offset that were deleted."""
        return {
            (broker, *queue)
            for broker, delivered in self._since.by_broker.items()
            if broker in self._followed
            for queue in self._followed[broker].tail.gone(delivered)
        }

    def withheld(self, *, is_once: bool) -> list[Loss]:
        """Return the messages after the offset that are there and nobody may read.

        Args:
            is_once: whether those are left out that were returned before.
        """
        delivered = self._since.by_broker
        return [
            Loss((broker, *queue), text)
            for broker, store in self._followed.items()
            for queue, text in store.withheld(delivered.get(broker, {}), is_once=is_once).items()
        ]

    def starts(self, ends: Mapping[Key, int]) -> tuple[dict[Key, int], list[Loss]]:
        """Return the offset at which each queue continues, and the losses before it.

        This is after what was delivered, unless that was cut off or deleted. Queues that the offset
        does not have start at their first message.

        Args:
            ends: the end of each queue.
        """
        starts: dict[Key, int] = {}
        losses: list[Loss] = []
        for key, end in ends.items():
            delivered = self._since.queues.get(key)
            starts[key] = delivered or 0
            if key[0] not in self._followed or (delivered == end and key not in self.replaced):
                continue
            starts[key], lost = continued(
                self._followed[key[0]].tail, key[1:], delivered, end, self.replaced.get(key),
                is_cut=key[0] in self.cut, is_replaced=key[0] in self.others,
            )  # fmt: skip
            losses += (Loss(key, text) for text in lost)
            if delivered is None and starts[key] and not lost:
                logger.info(
                    "%s-%d of broker %s is new, from offset %d", *key[1:], key[0], starts[key]
                )
        return starts, losses

    def stops(self, ends: Mapping[Key, int]) -> dict[Key, int]:
        """Return where the messages before the offset end in each queue.

        Only messages that the store still has count. If a recovery has cut the log since the
        offset was made, or a topic was made again, other messages may have replaced some of them.
        These belong after the offset.
        """
        present = self._snapshot.ends
        return {
            key: min(end, present.get(key, 0), self.replaced.get(key, end))
            for key, end in ends.items()
        }

    def offset(self, queues: Mapping[Key, int]) -> StreamOffset:
        """Return a later offset with these queue offsets, and the newest record of each broker.

        A query may have followed other queues before, whose messages are newer. A store whose
        newest record cannot be read has none: an older one would lie before its messages.
        """
        since = self._since
        snapshot = self._snapshot
        left: dict[Key, LastRecord] = {}  # the last records of queues that are not followed
        for key in queues.keys() - snapshot.ends.keys():
            record = since.last_record_of(key)
            is_left = key in since.left or key[0] in self._followed
            if queues[key] and record is not None and is_left:
                left[key] = record
        records = {**since.last_records}
        with_messages = {broker for (broker, *_), end in snapshot.ends.items() if end}
        for broker in with_messages - snapshot.last_records.keys():
            records.pop(broker, None)
        for broker, record in snapshot.last_records.items():
            proves = broker not in self.cut and self._followed[broker].proves_records
            records[broker] = max(records.get(broker, record), record) if proves else record
        # Where the last record stays, the first one stays too: equal offsets give equal text.
        old, new = since.first_records, snapshot.first_records
        kept = {key for key, record in records.items() if record == since.last_records.get(key)}
        first_records = {broker: old[broker] for broker in kept & old.keys()}
        first_records |= {broker: new[broker] for broker in (records.keys() - kept) & new.keys()}
        return StreamOffset(queues, records, left, first_records)
