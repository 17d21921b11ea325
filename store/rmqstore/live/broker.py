"""Running servers and their answers, such as the bounds of a broker's queues."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from rmqstore.errors import BrokerRefusedError, BrokerUnreachableError, MalformedBytesError
from rmqstore.live.location import LiveLocation
from rmqstore.live.patience import BUSY, Patience, is_passing
from rmqstore.remoting import (
    Address,
    Answer,
    RemotingClient,
    RequestCode,
    ResponseCode,
    is_answered,
)
from rmqstore.spans import QueueKey, QueueSlice
from rmqstore.storage.files.storage import Closing

# How a pull is answered if there is no message.
WITHOUT_MESSAGES: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_HAS_SUBSCRIPTION: Final = 1 << 2
_ANY_CODE: Final = range(-(1 << 31), 1 << 31)
# Their answers are large, and a proxy drops an answer while others wait in the buffer of the
# connection.
_LARGE_ANSWERS: Final = (RequestCode.PULL_MESSAGE, RequestCode.GET_ROUTEINFO_BY_TOPIC)
_MOST_LARGE: Final = 32  # of which are buffered
_MOST_SMALL: Final = 1024
_AT_ONCE: Final = 64  # requests on their way

Fields = Mapping[str, str]
Numbered = list[tuple[int, Answer]]  # the number of the request, and its answer


class LiveServer(Closing):
    """A connection to a name server or a broker, which is made when it is needed.

    Attributes:
        address: where it is.
        location: how it is talked to.
        is_behind_proxy: whether a proxy of RocketMQ answers for it; None until an answer shows it.
            Large answers of a proxy are asked for one after the other.

    Args:
        patience: seconds that it may be busy for, if they are others than for every server.
    """

    def __init__(
        self, address: Address, location: LiveLocation, *, patience: float | None = None
    ) -> None:
        self.address = address
        self.location = location
        self._patience = patience
        self.is_behind_proxy: bool | None = None
        self._client: RemotingClient | None = None
        self._version = 0  # as the last answer says

    def __str__(self) -> str:
        return str(self.address)

    def client(self) -> RemotingClient:
        """Return the connection.

        Raises:
            BrokerUnreachableError: the server cannot be connected to.
        """
        if self._client is None:
            self._client = RemotingClient(self.location.endpoint(self.address))
        return self._client

    def receive(self, opaques: Container[int]) -> Answer:
        """Return the next answer to one of some requests that are no sends.

        Its version and its mark of a proxy are noted. Brokers mark answers to sends likewise.

        Raises:
            BrokerUnreachableError: none came in time.
        """
        return self._noted(self.client().receive_one_of(opaques))

    def _noted(self, answer: Answer) -> Answer:
        self._version = answer.version
        if answer.is_of_proxy:
            self.is_behind_proxy = True
        elif answer.code in (ResponseCode.SUCCESS, *WITHOUT_MESSAGES):
            self.is_behind_proxy = bool(self.is_behind_proxy)  # a refusal of a proxy is not marked
        return answer

    def number(self, answer: Answer, name: str) -> int:
        """Return a field of an answer that is a number; 0 for -1, as of a queue without a file.

        Raises:
            BrokerUnreachableError: the answer does not have it.
        """
        try:
            return max(answer.number(name), 0)
        except MalformedBytesError as err:
            raise BrokerUnreachableError(str(self), err.reason) from err

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask(
        self,
        code: int,
        asked: Sequence[Fields],
        *,
        allowed: Container[int] = (ResponseCode.SUCCESS,),
    ) -> list[Answer]:
        """Return the answers to several requests of one kind, in their order.

        Raises as :meth:`rounds` does.
        """
        found = dict(chain.from_iterable(self.rounds(code, asked, allowed=allowed)))
        return [found[number] for number in range(len(asked))]

    def rounds(
        self, code: int, asked: Sequence[Fields], *, allowed: Container[int]
    ) -> Iterator[Numbered]:
        """Yield the answers to several requests of one kind, as many at a time as are buffered.

        What the server is too busy for, or failed at, is asked again, all of it together.

        Raises:
            BrokerUnreachableError: the server does not answer.
            BrokerRefusedError: an answer has another code than those that are allowed, or the
                server has been busy for a long time.
        """
        most = _MOST_LARGE if code in _LARGE_ANSWERS else _MOST_SMALL
        missing = [*range(len(asked))]
        patience = Patience(self._patience)
        while missing:
            busy: list[int] = []
            refusal = None
            for first in range(0, len(missing), most):
                numbers = missing[first : first + most]
                found = []
                answers = self._round(code, [asked[number] for number in numbers])
                for number, answer in zip(numbers, answers, strict=True):
                    if answer.code in allowed and answer.code not in BUSY:
                        found.append((number, answer))
                        continue
                    refusal = BrokerRefusedError(str(self), answer.code, answer.remark)
                    if not is_passing(answer.code, answer.remark):
                        raise refusal
                    busy.append(number)
                yield found
            if refusal is None:
                return
            if len(busy) < len(missing):
                patience.renew()
            patience.pause(refusal)
            missing = busy

    def _round(self, code: int, asked: Sequence[Fields]) -> list[Answer]:
        """Return the answers to some requests.

        A broken connection is made again once, because servers close those that are idle, and when
        they are started again.
        """
        was_open = self._client is not None
        try:
            return self._round_once(code, asked)
        except BrokerUnreachableError as err:
            if not was_open and not isinstance(err.__cause__, ConnectionError):
                raise
        self.close()
        return self._round_once(code, asked)

    def _round_once(self, code: int, asked: Sequence[Fields]) -> list[Answer]:
        client = self.client()
        answers: list[Answer] = []
        is_large = code in _LARGE_ANSWERS
        while len(answers) < len(asked) and is_large and self.is_behind_proxy is not False:
            answers += map(self._noted, client.request_all(code, [asked[len(answers)]], 1))
        left = client.request_all(code, asked[len(answers) :], _AT_ONCE)
        return [*answers, *map(self._noted, left)]


class LiveBroker(LiveServer):
    """A connection to a broker.

    Attributes:
        name: the name of the broker.
    """

    def __init__(self, name: str, address: Address, location: LiveLocation) -> None:
        super().__init__(address, location)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"

    def separate(self) -> LiveBroker:
        """Return the broker on a connection of its own, of which nobody else takes answers."""
        broker = LiveBroker(self.name, self.address, self.location)
        broker.is_behind_proxy = self.is_behind_proxy
        return broker

    def client(self) -> RemotingClient:
        """Return the connection; raises as that of any server does."""
        try:
            return super().client()
        except BrokerUnreachableError as err:
            raise BrokerUnreachableError(
                str(self),
                f"{err.reason}. The name servers give its address; if it is reached at another "
                "one, storage option address_map says so",
            ) from err

    def spans(self, queues: Sequence[QueueKey]) -> dict[QueueKey, tuple[int, int]]:
        """Return where queues begin and end, as the broker says.

        Raises:
            BrokerUnreachableError: it does not answer.
            BrokerRefusedError: it refuses.
        """
        spans = self.granted_spans(queues)
        # Pulls need SUB on the topic and the group.
        others = [key for key in queues if key not in spans]
        answers = self.pull([QueueSlice(*key, 0, 1) for key in others])
        for number, answer in chain.from_iterable(answers):
            end = self.number(answer, "maxOffset")
            spans[others[number]] = (min(self.number(answer, "minOffset"), end), end)
        return {key: spans[key] for key in queues}

    def forbidden(self, topics: Sequence[str]) -> dict[str, BrokerRefusedError]:
        """Return the topics that the broker does not let us read, with its refusals.

        It has at least one queue of each.
        """
        refused = {}
        codes = (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR)
        answers = self.pull([QueueSlice(topic, 0, 0, 1) for topic in topics], allowed=codes)
        for number, answer in chain.from_iterable(answers):
            if answer.code in codes and not is_passing(answer.code, answer.remark):
                refused[topics[number]] = BrokerRefusedError(str(self), answer.code, answer.remark)
        return refused

    def granted_spans(self, queues: Sequence[QueueKey]) -> dict[QueueKey, tuple[int, int]]:
        """Return the bounds of queues, without those of topics that GET is not granted on.

        Raises as :meth:`spans` does.
        """
        # The ends come first: a queue that is cleaned meanwhile shows it by a beginning past them.
        ends = self._offsets(RequestCode.GET_MAX_OFFSET, queues)
        filled = [key for key, end in ends.items() if end]
        begins = dict.fromkeys(ends.keys() - filled, 0)
        begins |= self._offsets(RequestCode.GET_MIN_OFFSET, filled)
        return {key: (min(begin, ends[key]), ends[key]) for key, begin in begins.items()}

    def ends(self, queues: Sequence[QueueKey]) -> dict[QueueKey, int]:
        """Return the ends of queues, without those that the broker refuses to report.

        Raises:
            BrokerUnreachableError: it does not answer.
            BrokerRefusedError: it refuses for another reason.
        """
        ends = self._offsets(RequestCode.GET_MAX_OFFSET, queues)
        others = [key for key in queues if key not in ends]
        # A topic that may not be read is asked for once. Brokers before 5.0 answer SYSTEM_ERROR for
        # a queue that may not be.
        firsts = list({topic: (topic, queue_id) for topic, queue_id in reversed(others)}.values())
        refused = (
            ResponseCode.NO_PERMISSION,
            ResponseCode.INVALID_PARAMETER,
            ResponseCode.SYSTEM_ERROR,
        )
        forbidden = set()
        for part in (firsts, others):
            keys = [key for key in part if key not in ends and key[0] not in forbidden]
            answers = self.pull([QueueSlice(*key, 0, 1) for key in keys], allowed=refused)
            for number, answer in chain.from_iterable(answers):
                if answer.code == ResponseCode.NO_PERMISSION:
                    forbidden.add(keys[number][0])
                elif answer.code not in refused:
                    ends[keys[number]] = self.number(answer, "maxOffset")
        return ends

    def _offsets(self, code: int, queues: Sequence[QueueKey]) -> dict[QueueKey, int]:
        """Return the offsets of queues, without those of topics that GET is not granted on."""
        found = self._granted_offsets(code, [self._of_queue(*key) for key in queues])
        named = zip(queues, found, strict=True)
        return {key: offset for key, offset in named if offset is not None}

    def _granted_offsets(self, code: int, asked: Sequence[Fields]) -> list[int | None]:
        """Return the offset in the answer to each request, None if it needs GET on the topic."""
        allowed = (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)
        return [
            self.number(answer, "offset") if answer.code == ResponseCode.SUCCESS else None
            for answer in self.ask(code, asked, allowed=allowed)
        ]

    def at_times(self, asked: Sequence[tuple[QueueKey, int]]) -> list[int | None]:
        """Return what the broker finds for pairs of a queue and a store time, ms.

        None where it does not let us search, which needs GET on the topic.
        """
        fields = [
            self._of_queue(*key) | {"timestamp": str(timestamp), "boundaryType": "LOWER"}
            for key, timestamp in asked
        ]
        return self._granted_offsets(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    def pull_fields(self, queue_slice: QueueSlice, subscription: str = "*") -> dict[str, str]:
        """Return the fields of a pull of a range, in which no offset is committed."""
        return {
            **self._of_queue(queue_slice.topic, queue_slice.queue_id),
            "consumerGroup": self.location.consumer_group,
            "queueOffset": str(queue_slice.start),
            "maxMsgNums": str(queue_slice.end - queue_slice.start),
            "sysFlag": str(_HAS_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": subscription,
            "subVersion": "0",
            "expressionType": "TAG",
        }

    def pull(
        self, queue_slices: Sequence[QueueSlice], *, allowed: Sequence[int] = ()
    ) -> Iterator[Numbered]:
        """Yield the answers to pulls of ranges, of which each may have some messages or none.

        Args:
            queue_slices: the ranges.
            allowed: other codes than those of pulls that answers may have.
        """
        codes = (ResponseCode.SUCCESS, *WITHOUT_MESSAGES, *allowed)
        asked = [self.pull_fields(queue_slice) for queue_slice in queue_slices]
        return self.rounds(RequestCode.PULL_MESSAGE, asked, allowed=codes)

    def committed(self, group: str, queues: Sequence[QueueKey]) -> dict[QueueKey, int]:
        """Return the offsets that a group has committed, by queue."""
        fields = [
            self._of_queue(*key) | {"consumerGroup": group, "setZeroIfNotFound": "false"}
            for key in queues
        ]
        allowed = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answers = self.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields, allowed=allowed)
        return {
            key: self.number(answer, "offset")
            for key, answer in zip(queues, answers, strict=True)
            if answer.code == ResponseCode.SUCCESS
        }

    def attributes(self, topics: Sequence[str]) -> list[Mapping[str, str]]:
        """Return the attributes of topics; brokers before 5.0 have none.

        Those do not answer the question at all.
        """
        if not self._version:
            anything = [self.pull_fields(QueueSlice(topic, 0, 0, 1)) for topic in topics[:1]]
            self.ask(RequestCode.PULL_MESSAGE, anything, allowed=_ANY_CODE)
        if not is_answered(RequestCode.GET_TOPIC_CONFIG, self._version):
            return [{} for _ in topics]
        asked = [{"topic": topic, "lo": "true"} for topic in topics]
        found: list[Mapping[str, str]] = []
        for answer in self.ask(RequestCode.GET_TOPIC_CONFIG, asked, allowed=_ANY_CODE):
            table: Any = None
            if answer.code == ResponseCode.SUCCESS:
                with suppress(ValueError, RecursionError, AttributeError):
                    table = json.loads(answer.body).get("attributes")
            given = table if isinstance(table, dict) else {}
            found.append({name: str(value) for name, value in given.items()})
        return found

    def _of_queue(self, topic: str, queue_id: int) -> dict[str, str]:
        """Return the fields that name a queue; a proxy needs the name of the broker."""
        return {"topic": topic, "queueId": str(queue_id), "bname": self.name}
