"""Pulls of ranges of queues from one broker, with many requests on their way.

A broker answers a pull with some of the messages that were asked for, at most 32 by default, and
with the queue offset at which the next pull continues. So a range is cut into requests before any
of them is answered, and what an answer leaves of its request is asked for again.

Each answer says by its status why it holds no message: the same code may mean that a filter let
nothing through, or that messages are gone.

Source: PullMessageProcessor.java; PullMessageRequestHeader.java; PullSysFlag.java;
DefaultMessageStore.java#getMessage; GetMessageStatus.java.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

import numpy as np

from rmqstore.errors import BrokerRefusedError, BrokerUnreachableError, MalformedBytesError
from rmqstore.format.columns.buffers import GATHER_SLACK
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.format.layout import FIXED_PART_V4, MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2, SysFlag
from rmqstore.live.broker import WITHOUT_MESSAGES, LiveBroker
from rmqstore.live.patience import Patience, is_passing
from rmqstore.read.last_record import LastRecord
from rmqstore.remoting import Answer, RequestCode, ResponseCode
from rmqstore.spans import QueueSlice

_REMOVING: Final = "MESSAGE_WAS_REMOVING"
# Where the broker would continue, and where the queue begins and ends.
_OFFSETS: Final = ("nextBeginOffset", "minOffset", "maxOffset")

# Requests on their way to a broker, which answers them while others are decoded here. More of them
# would read faster by some per cent, and let producers wait longer. A distant broker gets more, by
# the time of a round trip, as long as their answers have some megabytes together. A proxy gets
# one, because it drops answers while others wait in the buffer of the connection.
_LEAST_AT_ONCE: Final = 40
_MOST_AT_ONCE: Final = 512
_REQUESTS_PER_SECOND: Final = 40_000
_BYTES_AT_ONCE: Final = 8 << 20
_FIRST_COUNT: Final = 32  # messages of a request: a broker's limit by default
_MOST_MESSAGES: Final = 1024
_FILTERED_COUNT: Final = 4096  # messages that a broker checks for a request with a filter
_BUFFERED_BYTES: Final = 64 << 20  # of answers that wait for those before them
_PAUSE_SECONDS: Final = 0.1  # after answers that say nothing
_EMPTY_SECONDS: Final = 3.0  # of answers that say nothing, before the read fails


class Pulled(NamedTuple):
    """The answer for a span of a queue.

    Attributes:
        queue_slice: the range.
        start: the first queue offset of the span.
        end: the queue offset after it.
        following: where the broker continues: ``end``, or after it where a record holds several
            messages or a filter looks further.
        records: the records, one after the other; empty if the broker does not have them, or a
            filter lets none through.
        loss: why the messages of the span are gone, empty if they are not.
        is_filtered: whether the broker left out messages with other tags.
    """

    queue_slice: QueueSlice
    start: int
    end: int
    following: int
    records: bytes = b""
    loss: str = ""
    is_filtered: bool = False


@dataclass
class _RangePull:
    """The pull of a range.

    Attributes:
        queue_slice: what is pulled.
        head: everything before this queue offset was handed on.
        asked: everything before this one was asked for.
        count: how many messages the next request asks for.
        again: spans that have to be asked for once more, a heap.
        arrived: answers by their first offset, until those before them have come.
        silence: answers that say nothing, one after the other.
        cut: everything from this queue offset on is known to be cut off.
        is_filtered: whether the broker leaves out messages with other tags. It looks further then
            than it is asked to, so one request follows the other.
        patience: with a broker that answers that it failed.
    """

    queue_slice: QueueSlice
    head: int
    asked: int
    count: int
    again: list[tuple[int, int]] = field(default_factory=list)
    arrived: dict[int, Pulled] = field(default_factory=dict)
    silence: Patience = field(default_factory=lambda: Patience(_EMPTY_SECONDS))
    cut: int = 1 << 63
    is_filtered: bool = False
    patience: Patience = field(default_factory=Patience)

    def take(self, pulled: Pulled, until: int) -> int:
        """Keep the answer for a span up to ``until`` until those before it have come.

        Returns:
            How many bytes are buffered more.
        """
        self.silence.renew()
        self.patience.renew()
        n_given_up = 0
        if pulled.loss and pulled.end > until:  # nothing is asked for from here on
            self.cut = pulled.start
            self.asked = self.queue_slice.end
            self.again = sorted(span for span in self.again if span[0] < pulled.start)
            given_up = [self.arrived.pop(at) for at in [*self.arrived] if at >= pulled.start]
            n_given_up = sum(len(other.records) for other in given_up)
        self.arrived[pulled.start] = pulled
        if self.is_filtered:
            self.asked = pulled.end
            return len(pulled.records)
        if pulled.end < until:
            heappush(self.again, (pulled.end, until))
        if pulled.records:
            # A broker limits answers by messages and by bytes, and does not say how.
            if pulled.end < until:
                self.count = pulled.end - pulled.start
            elif until - pulled.start >= self.count:  # not one of the smaller requests before
                self.count = min(2 * self.count, _MOST_MESSAGES)
        return len(pulled.records) - n_given_up

    def ask_again(self, start: int, until: int) -> None:
        """Ask again for a span whose answer said nothing."""
        if self.is_filtered:
            self.asked = start
        else:
            heappush(self.again, (start, until))

    def pass_filter(self, start: int) -> None:
        """Ask without a filter for what is left, from a queue offset on.

        A broker that looked past the end of the range has not said which of its messages are in.
        """
        self.is_filtered = False
        self.asked = start
        self.count = _FIRST_COUNT

    def next_request(self) -> tuple[int, int] | None:
        """Return the next span to ask for, None if everything is asked for."""
        if self.again:
            return heappop(self.again)
        start = self.asked
        if start >= self.queue_slice.end or (self.is_filtered and start > self.head):
            return None
        self.asked = min(start + self.count, self.queue_slice.end)
        return start, self.asked

    def ready(self) -> Iterator[Pulled]:
        """Yield the answers that follow on what was handed on."""
        while (pulled := self.arrived.pop(self.head, None)) is not None:
            self.head = pulled.end
            yield pulled

    def begin_again(self) -> None:
        """Ask again for all whose answers were lost with a connection."""
        self.again.clear()
        at = self.head
        for pulled in sorted(self.arrived.values()):
            if at < pulled.start:
                self.again.append((at, pulled.start))
            at = pulled.end
        self.asked = at


class RecordHeader(NamedTuple):
    """A record's own fields, and the queue offset at which it was found.

    Attributes:
        size: its size.
        physical_offset: where it lies in the log.
        store_timestamp: when it was stored, ms.
        queue_offset: its offset in its queue, as it says; one more in a queue that lacks a record.
        is_batch: whether it holds several messages.
        served_offset: the queue offset at which the broker has it, or the one that was asked for if
            it is within the record; -1 where no queue was asked.
    """

    size: int
    physical_offset: int
    store_timestamp: int
    queue_offset: int
    is_batch: bool
    served_offset: int = -1

    @property
    def last_record(self) -> LastRecord:
        """The record as one by which the log of the broker is recognized."""
        return LastRecord(self.physical_offset, self.store_timestamp)


def first_records(
    broker: LiveBroker, queue_slices: Sequence[QueueSlice]
) -> list[RecordHeader | None]:
    """Return the first record that a broker has from the start of each of some ranges on.

    It may lie after the range, because a broker passes over messages whose files are deleted. None
    is returned where the broker has passed over many of them, and found no other one.

    Raises:
        BrokerUnreachableError: the broker does not answer, or not with a record.
        BrokerRefusedError: it refuses.
    """
    found: dict[QueueSlice, RecordHeader | None] = {}
    missing = [*queue_slices]
    patience = Patience(_EMPTY_SECONDS)
    while True:
        records, unclear = first_answers(broker, missing)
        found |= records
        if not unclear:
            return [found[queue_slice] for queue_slice in queue_slices]
        missing = [*unclear]
        unanswered, answer = next(iter(unclear.items()))
        text = (
            f"queue offset {unanswered.start} of {unanswered.topic}-{unanswered.queue_id} is "
            f"answered by {answer.reason}"
        )
        patience.pause(BrokerUnreachableError(str(broker), text))


def first_answers(
    broker: LiveBroker, queue_slices: Sequence[QueueSlice]
) -> tuple[dict[QueueSlice, RecordHeader | None], dict[QueueSlice, Answer]]:
    """Return the results of :func:`first_records` by range, and the answers without one."""
    records: dict[QueueSlice, RecordHeader | None] = {}
    unclear: dict[QueueSlice, Answer] = {}
    singles = [queue_slice._replace(end=queue_slice.start + 1) for queue_slice in queue_slices]
    for answered in broker.pull(singles):
        headers = _record_headers([answer.body for _, answer in answered])
        for (number, answer), head in zip(answered, headers, strict=True):
            asked = queue_slices[number]
            if answer.code == ResponseCode.SUCCESS and head is not None:
                records[asked] = _served(broker, answer, head, asked.start)
            elif _is_deleted(answer, asked.start) or _is_cut_head(answer, asked.start):
                records[asked] = None
            else:
                unclear[asked] = answer
    return records, unclear


def _served(broker: LiveBroker, answer: Answer, record: RecordHeader, start: int) -> RecordHeader:
    """Return the record in the answer to a pull of one message, with its queue offset.

    Raises:
        BrokerUnreachableError: the answer does not say where the broker would continue.
    """
    if record.is_batch:  # its messages have several offsets
        return record._replace(served_offset=max(record.queue_offset, start))
    following = broker.number(answer, "nextBeginOffset")
    return record._replace(served_offset=max(following - 1, start))


def _is_cut_head(answer: Answer, start: int) -> bool:
    """Return whether a broker answers with the beginning of another record for the first of a log.

    Where that is deleted, it takes as many bytes from the file that is the first one now.

    Source: CommitLog.java#getMessage.
    """
    if answer.code != ResponseCode.SUCCESS or start or len(answer.body) < FIXED_PART_V4.itemsize:
        return False
    fixed = np.frombuffer(answer.body, FIXED_PART_V4, 1)[0]
    is_record = fixed["magic"] in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)
    return bool(is_record and fixed["physical_offset"] > 0)


def _is_deleted(answer: Answer, queue_offset: int) -> bool:
    """Return whether an answer without a message says that it is deleted."""
    if answer.code != ResponseCode.PULL_OFFSET_MOVED:
        return answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and _REMOVING in answer.remark
    try:
        return queue_offset < answer.number("minOffset")
    except MalformedBytesError:
        return False


def record_at(broker: LiveBroker, physical_offset: int) -> RecordHeader | None:
    """Return the record at a physical offset; None, or another one, if none begins there.

    Source: QueryMessageProcessor.java#viewMessageById.
    """
    fields = {"offset": str(physical_offset)}
    allowed = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    (answer,) = broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, [fields], allowed=allowed)
    if answer.code != ResponseCode.SUCCESS:
        return None
    return _record_headers([answer.body])[0]


def _record_headers(bodies: Sequence[bytes]) -> list[RecordHeader | None]:
    """Return the head of the record that each answer begins with, None if it is incomplete."""
    lengths = np.array([len(body) for body in bodies], np.int64)
    starts = np.cumsum(lengths) - lengths
    buffer = np.frombuffer(b"".join([*bodies, bytes(GATHER_SLACK)]), np.uint8)
    headers, is_complete = read_headers(buffer, starts)
    is_complete &= headers.column("total_size") <= lengths
    names = ("total_size", "physical_offset", "store_timestamp", "queue_offset")
    is_batch = (headers.column("sys_flag") & SysFlag.INNER_BATCH) != 0
    columns = [*(headers.column(name) for name in names), is_batch]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        RecordHeader(*row) if complete else None
        for row, complete in zip(rows, is_complete, strict=True)
    ]


class Pulls:
    """Pulls ranges of queues from one broker.

    Args:
        broker: the broker.
        slices: the ranges. They are handed on one after the other, each in its order, so that a
            repeated read gives the same.
        tags: a broker leaves out messages whose tag has another hash than all of these, if given.
            A range has only one request on its way then, and several are handed on as they come.
    """

    def __init__(
        self, broker: LiveBroker, slices: Sequence[QueueSlice], tags: frozenset[str] | None = None
    ) -> None:
        self._broker = broker
        self._subscription = "*" if tags is None else " || ".join(sorted(tags))
        self._is_filtered = is_filtered = tags is not None
        count = _FILTERED_COUNT if is_filtered else _FIRST_COUNT
        self._ranges = [
            _RangePull(part, part.start, part.start, count, is_filtered=is_filtered)
            for part in slices
        ]
        self._waiting: dict[int, tuple[_RangePull, int, int]] = {}
        self._most_bytes = 0  # of an answer so far, at least 1; 0 before the first one
        self._at_once = 1  # how many requests might be on their way when some were sent last
        self._n_buffered = 0  # bytes of answers that wait for others
        self._patience = Patience()
        self._is_pausing = False  # until no request is on its way, and then for a pause
        self._was_empty = False  # whether the last answer said nothing
        self._refused = ""  # why the broker answers none for now

    def __iter__(self) -> Iterator[Pulled]:
        """Yield what comes.

        Raises:
            BrokerUnreachableError: the broker did not answer for a long time.
            BrokerRefusedError: it refuses.
        """
        unfinished = deque(pull for pull in self._ranges if pull.head < pull.queue_slice.end)
        while unfinished:
            try:
                self._rest()
                self._send(unfinished)
                answered = self._receive()
            except BrokerUnreachableError as err:
                self._broker.close()
                self._waiting.clear()
                self._is_pausing = False
                self._refused = ""
                for pull in self._ranges:
                    pull.begin_again()
                self._patience.pause(err)
                continue
            if answered is None:
                continue
            while unfinished:
                pull = answered if self._is_filtered else unfinished[0]
                for pulled in pull.ready():
                    self._n_buffered -= len(pulled.records)
                    yield pulled
                if pull.head < pull.queue_slice.end:
                    break
                unfinished.remove(pull)
                if self._is_filtered:
                    break

    def _rest(self) -> None:
        """Pause once for all answers of one round that gave nothing.

        Raises:
            BrokerUnreachableError: the broker has answered none for a long time.
        """
        if not self._is_pausing or self._waiting:
            return
        refused = self._refused
        self._is_pausing = False
        self._refused = ""
        if refused:
            self._patience.pause(BrokerUnreachableError(str(self._broker), refused))
        else:
            time.sleep(_PAUSE_SECONDS)

    def _send(self, unfinished: deque[_RangePull]) -> None:
        """Send requests if many more may be on their way, together."""
        if self._is_pausing or len(self._waiting) > self._at_once // 2:
            return
        at_once = self._at_once = self._most_at_once()
        spans: list[tuple[_RangePull, int, int]] = []
        first = unfinished[0]
        for pull in [*unfinished] if self._is_filtered else unfinished:
            # What others wait for is always asked for.
            while len(self._waiting) + len(spans) < at_once and (
                self._n_buffered < _BUFFERED_BYTES or pull.again or pull is first
            ):
                span = pull.next_request()
                if span is None:
                    break
                spans.append((pull, *span))
            if len(self._waiting) + len(spans) >= at_once:
                break
            if self._is_filtered:
                unfinished.rotate(-1)  # every range gets its turn to be first
        if not spans:
            return
        requests = []
        for pull, start, until in spans:
            queue_slice = pull.queue_slice._replace(start=start, end=until)
            subscription = self._subscription if pull.is_filtered else "*"
            requests.append((self._broker.pull_fields(queue_slice, subscription), b""))
        sent = self._broker.client().send_all(RequestCode.PULL_MESSAGE, requests)
        self._waiting |= zip(sent, spans, strict=True)

    def _most_at_once(self) -> int:
        """Return how many requests may be on their way."""
        if self._broker.is_behind_proxy is not False or not self._most_bytes:
            return 1
        if self._was_empty:  # brokers log each, and those of 4.x store a message about it
            return 1
        round_trip = self._broker.client().round_trip
        by_distance = min(int(round_trip * _REQUESTS_PER_SECOND), _MOST_AT_ONCE)
        by_size = _BYTES_AT_ONCE // self._most_bytes
        # The first answers may be small, or hold no message.
        return max(min(by_distance, by_size, 2 * self._at_once), _LEAST_AT_ONCE)

    def _receive(self) -> _RangePull | None:
        """Take one answer, and return the range that has it now; None if it says nothing."""
        answer = self._broker.receive(self._waiting)
        pull, start, until = self._waiting.pop(answer.opaque)
        self._most_bytes = max(self._most_bytes, len(answer.body), 1)
        if start >= pull.cut:
            return None
        pulled = None
        if is_passing(answer.code, answer.remark):
            self._refused = answer.reason
            # Others may be answered meanwhile.
            if answer.code == ResponseCode.SYSTEM_ERROR and pull.patience.has_ended():
                raise BrokerRefusedError(str(self._broker), answer.code, answer.remark)
        else:
            pulled = self._pulled(answer, pull, start, until)
            if pulled is None and pull.silence.has_ended():
                reason = (
                    f"{answer.remark}: pulls of {pull.queue_slice.topic}-"
                    f"{pull.queue_slice.queue_id} from {start} on give nothing, and do not say why"
                )
                raise BrokerRefusedError(str(self._broker), answer.code, reason)
        self._was_empty = pulled is None
        if pulled is None:
            pull.ask_again(start, until)
            self._is_pausing = True
            return None
        self._patience.renew()
        if pull.is_filtered and pulled.following > pull.queue_slice.end:
            pull.pass_filter(start)
            return None
        self._n_buffered += pull.take(pulled, until)
        return pull

    def _pulled(self, answer: Answer, pull: _RangePull, start: int, until: int) -> Pulled | None:
        """Return what an answer says of a span, None if the same has to be asked again.

        Raises:
            BrokerRefusedError: the broker refuses the request.
            BrokerUnreachableError: what came is not an answer to it.
        """
        if answer.code != ResponseCode.SUCCESS and answer.code not in WITHOUT_MESSAGES:
            raise BrokerRefusedError(str(self._broker), answer.code, answer.remark)
        following, _, _ = (self._broker.number(answer, name) for name in _OFFSETS)
        end = following if pull.is_filtered else min(following, until)
        pulled = Pulled(pull.queue_slice, start, end, following, is_filtered=pull.is_filtered)
        if answer.code == ResponseCode.SUCCESS and answer.body and following > start:
            return pulled._replace(records=answer.body)
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and following > start:
            if _REMOVING in answer.remark:
                return pulled._replace(loss="their files are deleted", is_filtered=False)
            if pull.is_filtered:
                return pulled
        if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            return _lost(answer, pull, start, until)
        return None


def _lost(answer: Answer, pull: _RangePull, start: int, until: int) -> Pulled | None:
    """Return what is gone of a span, by an answer without messages; None if it does not say."""
    following, first, last = map(answer.number, _OFFSETS)
    queue_slice = pull.queue_slice
    status = answer.reason
    if start < first:
        end = min(first, until)
        text = f"they are deleted: the queue begins at {first} now"
        return Pulled(queue_slice, start, end, end, loss=text)
    # A broker may not have brought the queue back yet after its start.
    if start >= last and pull.silence.has_ended():
        text = f"they are cut off: the queue ends at {last} now ({status})"
        return Pulled(queue_slice, start, queue_slice.end, queue_slice.end, loss=text)
    # A unit that cannot be read. The broker passes over the rest of its file.
    if start < min(following, last) and pull.silence.has_ended():
        end = min(following, until) if following <= last else start + 1
        return Pulled(queue_slice, start, end, end, loss=f"unreadable ({status})")
    return None
