"""Requests to store messages on their way to one broker, and what became of them.

A queue has one request on its way at a time, because brokers store those of one connection in any
order. Whether a request was stored whose answer is lost shows in the queue: its messages have
unique keys, and that of the last one is looked for before it is sent again. A broker that is killed
while it copies a batch into its log keeps those that are complete, so the first one proves nothing.

Source: SendMessageProcessor.java; BrokerFastFailure.java; HookUtils.java#checkBeforePutMessage.
"""

from __future__ import annotations

import json
import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    IllegalMessageError,
    OptionError,
)
from rmqstore.format.layout import PROPERTY_UNIQ_KEY
from rmqstore.live import patience
from rmqstore.live.broker import LiveBroker
from rmqstore.live.patience import BUSY, Patience, is_passing
from rmqstore.live.pulls import Pulls
from rmqstore.remoting import Answer, RequestCode, ResponseCode
from rmqstore.spans import QueueKey, QueueSlice

logger = logging.getLogger(__name__)

_NOT_DURABLE: Final = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)
_TOO_LARGE: Final = "body size exceeded"
_CERTAIN_REMARKS: Final = (_TOO_LARGE, "in-sync replicas", "create mapped file failed")
_SIZE: Final = struct.Struct(">i")
_UNIQ_KEY: Final = f"{PROPERTY_UNIQ_KEY}\x01".encode()
_END_OF_PROPERTY: Final = b"\x02"

_AT_ONCE: Final = 32  # requests on their way to a broker
_PAUSE_SECONDS: Final = 0.5  # between two questions about what a broker still has to dispatch
_DISPATCH_SECONDS: Final = 5.0
_DISPATCH_PAUSES: Final = (0.002, 0.1)  # the first one, and the longest
_VISIBLE_SECONDS: Final = 1.0  # in which a queue shows what was stored last


@dataclass
class SendRequest:
    """Messages that are sent together; a broker stores the first ones of them, or all.

    Attributes:
        code: of the request.
        fields: its fields.
        body: its body.
        n_messages: how many messages it sends.
        last_key: the unique key as the record of the last message has it; empty without one.
        is_delayed: whether a broker keeps them in another topic first.
        patience: with a broker that answers that it failed.
    """

    code: int
    fields: dict[str, str]
    body: bytes
    n_messages: int
    last_key: bytes
    is_delayed: bool = False
    patience: Patience = field(default_factory=Patience)

    def halves(self) -> list[SendRequest]:
        """Return two requests that send the messages of a batch of two or more."""
        n_first = self.n_messages // 2
        last = at = 0
        for _ in range(n_first):
            last = at
            at += _SIZE.unpack_from(self.body, at)[0]
        # Properties stand at the end of a message.
        start = self.body.rfind(_UNIQ_KEY, last, at)
        end = self.body.find(_END_OF_PROPERTY, max(start, last), at) + 1
        last_key = self.body[start:end] if start >= 0 and end else b""
        first = replace(self, body=self.body[:at], n_messages=n_first, last_key=last_key)
        rest = replace(self, body=self.body[at:], n_messages=self.n_messages - n_first)
        return [first, rest]


@dataclass
class SendQueue:
    """A queue that is written to.

    Attributes:
        broker: the name of its broker.
        topic: its topic.
        queue_id: its id.
        base: the queue offset after all messages of ours that are known to be stored, -1 if the
            broker does not let us ask.
        end: where the queue ended when the broker was asked last, -1 if it does not let us ask.
        waiting: requests in their order.
        sent: the request that is on its way, or whose answer was lost.
    """

    broker: str
    topic: str
    queue_id: int
    base: int
    end: int
    waiting: deque[SendRequest] = field(default_factory=deque)
    sent: SendRequest | None = None

    @property
    def key(self) -> QueueKey:
        """Topic and queue id."""
        return self.topic, self.queue_id

    def begin(self) -> SendRequest:
        """Return the next request, which is on its way then."""
        self.sent = self.waiting.popleft()
        return self.sent

    def put_back(self, requests: Sequence[SendRequest]) -> None:
        """Send again what was on its way and is not stored."""
        self.sent = None
        self.waiting.extendleft(reversed(requests))

    def note_end(self, end: int) -> None:
        """Note where the queue ends, as the broker says."""
        self.end = end

    def note_stored(self, queue_offset: int | None) -> SendRequest:
        """Note that messages on their way are stored, and their offsets if known."""
        request, self.sent = self.sent, None
        assert request is not None, "a request was on its way"
        if queue_offset is not None and self.base >= 0 and not request.is_delayed:
            self.base = max(self.base, queue_offset)
        return request


class Sender:
    """Sends the requests of the queues of one broker.

    Questions to the broker go another way, so that no answer to a request is lost by them.

    Args:
        broker: the broker.
        find: returns the broker at the address where it is now.
    """

    def __init__(self, broker: LiveBroker, find: Callable[[], LiveBroker]) -> None:
        self.name = broker.name
        self.queues: list[SendQueue] = []
        self.n_buffered = 0  # bytes of requests that wait or are on their way, each at least one
        self.n_sent = 0  # messages that are stored
        self._asked = broker
        self._sends = broker.separate()
        self._find = find
        self._ready: deque[SendQueue] = deque()  # with requests that wait, and none on its way
        self._on_their_way: dict[int, SendQueue] = {}
        self._refused = ""  # why the broker takes nothing for now
        self._patience = Patience()  # while nothing is stored
        self._warned: set[int] = set()

    def close(self) -> None:
        """Close the connection."""
        self._sends.close()

    def put(self, queue: SendQueue, request: SendRequest) -> None:
        """Let a request wait for its turn."""
        if queue.sent is None and not queue.waiting:
            self._ready.append(queue)
        queue.waiting.append(request)
        self.n_buffered += len(request.body)

    def wait_until_dispatched(self) -> None:
        """Wait until the queues show the stored messages, as far as that can be known."""
        behind = [queue for queue in self.queues if queue.end < queue.base]
        until = time.monotonic() + _DISPATCH_SECONDS
        pause, longest = _DISPATCH_PAUSES
        with suppress(BrokerUnreachableError, BrokerRefusedError):
            while behind and time.monotonic() < until:
                ends = self._asked.ends([queue.key for queue in behind])
                for queue in behind:
                    queue.note_end(ends.get(queue.key, queue.base))
                behind = [queue for queue in behind if queue.end < queue.base]
                if behind:
                    time.sleep(pause)
                    pause = min(2 * pause, longest)

    def exchange(self) -> None:
        """Send what may be sent, and take one answer if any is owed.

        Raises:
            BrokerUnreachableError: the broker has not stored anything for a long time.
            BrokerRefusedError: it refuses.
            OptionError: it has no such topic.
            IllegalMessageError: it takes no message of this size.
        """
        try:
            self._send()
            self._receive()
        except BrokerUnreachableError as err:
            self._recover(err)

    def _send(self) -> None:
        if self._refused:
            if self._on_their_way:
                return
            refusal = BrokerUnreachableError(str(self._sends), self._refused)
            self._refused = ""
            self._patience.pause(refusal)
        while self._ready and len(self._on_their_way) < _AT_ONCE:
            client = self._sends.client()
            queue = self._ready.popleft()
            request = queue.begin()
            number = client.send(request.code, request.fields, request.body)
            self._on_their_way[number] = queue

    def _receive(self) -> None:
        if not self._on_their_way:
            return
        answer = self._sends.client().receive_one_of(self._on_their_way)
        queue = self._on_their_way.pop(answer.opaque)
        if answer.code != ResponseCode.SUCCESS and answer.code not in _NOT_DURABLE:
            self._take_refusal(queue, answer)
            return
        assert queue.sent is not None, "it was on its way"
        first = self._sends.number(answer, "queueOffset")
        self._note_stored(queue, first + queue.sent.n_messages)
        if answer.code in _NOT_DURABLE and answer.code not in self._warned:
            self._warned.add(answer.code)
            logger.warning("%s: stored, but %s", self._sends, ResponseCode(answer.code).name)

    def _take_refusal(self, queue: SendQueue, answer: Answer) -> None:
        """Handle an answer to a request that is not stored, or may not be."""
        request = queue.sent
        assert request is not None, "it was on its way"
        remark = answer.reason
        if answer.code in BUSY:
            self._put_back(queue, [request])
            self._refused = remark  # one pause for all that are refused together
        elif answer.code == ResponseCode.SYSTEM_ERROR and _TOO_LARGE in remark:
            if request.n_messages == 1:
                raise IllegalMessageError(
                    f"{self._sends}: {queue.topic}-{queue.queue_id}: a message of "
                    f"{len(request.body)} bytes is over its maxMessageSize: {remark}"
                )
            self._put_back(queue, request.halves())
        elif is_passing(answer.code, remark) and not any(map(remark.count, _CERTAIN_REMARKS)):
            if request.patience.has_ended():
                raise BrokerRefusedError(str(self._sends), answer.code, remark)
            raise BrokerUnreachableError(str(self._sends), remark)  # it may be stored
        elif answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise OptionError(f"{self._sends} has no topic {queue.topic}: {remark}")
        else:
            raise BrokerRefusedError(str(self._sends), answer.code, remark)

    def _put_back(self, queue: SendQueue, requests: Sequence[SendRequest]) -> None:
        queue.put_back(requests)
        self._ready.append(queue)

    def _note_stored(self, queue: SendQueue, end: int | None) -> None:
        request = queue.note_stored(end)
        if queue.waiting:
            self._ready.append(queue)
        self._patience.renew()
        self.n_buffered -= len(request.body)
        self.n_sent += request.n_messages

    def _recover(self, err: BrokerUnreachableError) -> None:
        """Wait for the broker, and find out which requests it has stored of those on their way.

        Raises:
            BrokerUnreachableError: it has not stored anything for a long time.
        """
        self._refused = ""
        self._on_their_way.clear()
        self._sends.close()
        while True:
            self._patience.pause(err)
            try:
                self._asked.close()
                self._asked = broker = self._find()
                self._sends = broker.separate()
                _wait_for_queues(broker)
                unconfirmed = [queue for queue in self.queues if queue.sent is not None]
                for is_last in (False, True):
                    missing = [
                        queue for queue in unconfirmed if not self._find_stored(broker, queue)
                    ]
                    if missing and not is_last:
                        time.sleep(_VISIBLE_SECONDS)
                    unconfirmed = missing
            except BrokerUnreachableError as again:
                err = again
                continue
            for queue in unconfirmed:
                assert queue.sent is not None, "its answer was lost"
                self._put_back(queue, [queue.sent])
            return

    def _find_stored(self, broker: LiveBroker, queue: SendQueue) -> bool:
        """Return whether the request whose answer was lost is found in its queue."""
        request = queue.sent
        assert request is not None, "its answer was lost"
        if not request.last_key or queue.base < 0:
            return False
        end = broker.ends([queue.key]).get(queue.key, -1)
        if end <= queue.base:
            return False
        n_missing = max(request.body.count(request.last_key), 1)  # ids that are given may be equal
        for pulled in Pulls(broker, [QueueSlice(queue.topic, queue.queue_id, queue.base, end)]):
            n_missing -= pulled.records.count(request.last_key)
            if n_missing <= 0:
                logger.info("%s: %s-%d has what was sent", broker, queue.topic, queue.queue_id)
                self._note_stored(queue, None)
                return True
        return False


def _wait_for_queues(broker: LiveBroker) -> None:
    """Wait until the queues of a broker show all that its log holds."""
    until = time.monotonic() + patience.PATIENCE_SECONDS
    while time.monotonic() < until:
        try:
            (answer,) = broker.ask(RequestCode.GET_BROKER_RUNTIME_INFO, [{}])
            behind = int(json.loads(answer.body)["table"]["dispatchBehindBytes"])
        except (BrokerRefusedError, ValueError, KeyError, TypeError):
            time.sleep(_VISIBLE_SECONDS)
            return
        if behind <= 0:
            return
        time.sleep(_PAUSE_SECONDS)
