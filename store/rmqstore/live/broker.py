"""One running broker: where its queues begin and end, and requests that it answers."""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    MalformedBytesError,
)
from rmqstore.live.location import LiveLocation
from rmqstore.remoting.client import Address, Answer, RemotingClient
from rmqstore.remoting.codes import RequestCode, ResponseCode, is_answered
from rmqstore.spans import QueueSlice
from rmqstore.storage.files.storage import Closing

# How a pull is answered if there is no message.
WITHOUT_MESSAGES: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_HAS_SUBSCRIPTION: Final = 1 << 2
_ANY_CODE: Final = range(-(1 << 31), 1 << 31)
_AT_ONCE: Final = 64  # requests on their way
_BUSY_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.2

Fields = Mapping[str, str]


class LiveBroker(Closing):
    """A connection to a broker, which is made when it is needed.

    Attributes:
        name: the name of the broker.
        address: where it is reached.
        is_behind_proxy: whether a proxy of RocketMQ answers for it. It drops answers while others
            wait in the buffer of the connection, so one pull follows the other.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        location: LiveLocation,
        *,
        is_behind_proxy: bool = False,
    ) -> None:
        self.name, self.address, self.location = name, address, location
        self.is_behind_proxy = is_behind_proxy
        self._client: RemotingClient | None = None
        self._version = 0  # as the last answer says

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"

    def separate(self) -> LiveBroker:
        """Return the broker on a connection of its own, of which nobody else takes answers."""
        return LiveBroker(
            self.name, self.address, self.location, is_behind_proxy=self.is_behind_proxy
        )

    def client(self) -> RemotingClient:
        """Return the connection.

        Raises:
            BrokerUnreachableError: the broker cannot be connected to.
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
        answer = self.client().receive_one_of(opaques)
        self._version = answer.version
        self.is_behind_proxy |= answer.is_of_proxy  # a refusal is not marked
        return answer

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def spans(self, topic: str, queue_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return where queues begin and end, as the broker says.

        Raises:
            BrokerUnreachableError: it does not answer.
            BrokerRefusedError: it refuses.
        """
        asked = [self._of_queue(topic, queue_id) for queue_id in queue_ids]
        # The ends come first: a queue that is cleaned meanwhile shows it by a beginning past them.
        ends = self._offsets(RequestCode.GET_MAX_OFFSET, asked)
        begins = None if ends is None else self._offsets(RequestCode.GET_MIN_OFFSET, asked)
        if ends is None or begins is None:
            return self._pulled_spans(topic, queue_ids)
        return [(min(begin, end), end) for begin, end in zip(begins, ends, strict=True)]

    def ends(self, topic: str, queue_ids: Sequence[int]) -> list[int]:
        """Return where queues end; raises as :meth:`spans` does."""
        asked = [self._of_queue(topic, queue_id) for queue_id in queue_ids]
        ends = self._offsets(RequestCode.GET_MAX_OFFSET, asked)
        return [end for _, end in self._pulled_spans(topic, queue_ids)] if ends is None else ends

    def _pulled_spans(self, topic: str, queue_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return where queues begin and end as answers to pulls say.

        Pulls need SUB on the topic and the group, and the requests for offsets GET on the topic.
        """
        answers = self.pull([QueueSlice(topic, queue_id, 0, 1) for queue_id in queue_ids])
        spans = []
        for answer in answers:
            begin, end = self._number(answer, "minOffset"), self._number(answer, "maxOffset")
            spans.append((min(begin, end), end))
        return spans

    def at_times(self, topic: str, asked: Sequence[tuple[int, int]]) -> list[int] | None:
        """Return what the broker finds for pairs of a queue id and a store time, ms.

        None if it does not let us search, which needs GET on the topic.
        """
        fields = [
            self._of_queue(topic, queue_id) | {"timestamp": str(timestamp), "boundaryType": "LOWER"}
            for queue_id, timestamp in asked
        ]
        return self._offsets(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    def pull_fields(self, wanted: QueueSlice, subscription: str = "*") -> dict[str, str]:
        """Return the fields of a pull of a range, in which no offset is committed."""
        return {
            **self._of_queue(wanted.topic, wanted.queue_id),
            "consumerGroup": self.location.consumer_group,
            "queueOffset": str(wanted.start),
            "maxMsgNums": str(wanted.end - wanted.start),
            "sysFlag": str(_HAS_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": subscription,
            "subVersion": "0",
            "expressionType": "TAG",
        }

    def pull(self, wanted: Sequence[QueueSlice], *, allowed: Sequence[int] = ()) -> list[Answer]:
        """Return the answers to pulls of ranges, of which each may have some messages or none.

        Args:
            wanted: the ranges.
            allowed: other codes than those of pulls that answers may have.
        """
        asked = [self.pull_fields(piece) for piece in wanted]
        codes = (ResponseCode.SUCCESS, *WITHOUT_MESSAGES, *allowed)
        return self.ask(RequestCode.PULL_MESSAGE, asked, allowed=codes)

    def committed(self, group: str, topic: str, queue_ids: Sequence[int]) -> dict[int, int]:
        """Return the offsets that a group has committed, by queue id."""
        found = {}
        fields = [
            self._of_queue(topic, queue_id) | {"consumerGroup": group, "setZeroIfNotFound": "false"}
            for queue_id in queue_ids
        ]
        answers = self.ask(
            RequestCode.QUERY_CONSUMER_OFFSET,
            fields,
            allowed=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        for queue_id, answer in zip(queue_ids, answers, strict=True):
            if answer.code == ResponseCode.SUCCESS:
                found[queue_id] = self._number(answer, "offset")
        return found

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

    def _offsets(self, code: int, asked: Sequence[Fields]) -> list[int] | None:
        """Return the offset in the answer to each of several requests of one kind.

        None if the broker does not let us ask, which needs GET on the topic.
        """
        try:
            return [self._number(answer, "offset") for answer in self.ask(code, asked)]
        except BrokerRefusedError as err:
            if err.code != ResponseCode.NO_PERMISSION:
                raise
            return None

    def _number(self, answer: Answer, name: str) -> int:
        try:
            return max(answer.number(name), 0)  # -1 of a queue that has no file
        except MalformedBytesError as err:
            raise BrokerUnreachableError(str(self), err.reason) from err

    def ask(
        self,
        code: int,
        asked: Sequence[Fields],
        *,
        allowed: Container[int] = (ResponseCode.SUCCESS,),
    ) -> list[Answer]:
        """Return the answers to several requests of one kind, in their order.

        A broken connection is made again once, because a broker closes those that are idle.

        Raises:
            BrokerUnreachableError: the broker does not answer.
            BrokerRefusedError: an answer has another code than those that are allowed.
        """
        with suppress(BrokerUnreachableError):
            if self._client is not None:
                return self._ask(code, asked, allowed)
        self.close()
        return self._ask(code, asked, allowed)

    def _ask(self, code: int, asked: Sequence[Fields], allowed: Container[int]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        missing: Iterable[int] = range(len(asked))
        for attempt in range(_BUSY_ATTEMPTS):
            found = self._ask_once(code, {number: asked[number] for number in missing})
            answers |= found
            missing = [n for n, answer in found.items() if answer.code == ResponseCode.SYSTEM_BUSY]
            if not missing:
                break
            time.sleep(_PAUSE_SECONDS * 2**attempt)
        for answer in answers.values():
            if answer.code not in allowed:
                raise BrokerRefusedError(str(self), answer.code, answer.remark)
        return [answers[number] for number in range(len(asked))]

    def _ask_once(self, code: int, asked: Mapping[int, Fields]) -> dict[int, Answer]:
        client = self.client()
        answers: dict[int, Answer] = {}
        waiting: dict[int, int] = {}
        left = iter(asked.items())
        while len(answers) < len(asked):
            is_sound = self._version and not self.is_behind_proxy
            at_once = _AT_ONCE if code != RequestCode.PULL_MESSAGE or is_sound else 1
            while len(waiting) < at_once and (item := next(left, None)) is not None:
                waiting[client.send(code, item[1])] = item[0]
            answer = self.receive(waiting)
            answers[waiting.pop(answer.opaque)] = answer
        return answers

    def _of_queue(self, topic: str, queue_id: int) -> dict[str, str]:
        """Return the fields that name a queue; a proxy needs the name of the broker."""
        return {"topic": topic, "queueId": str(queue_id), "bname": self.name}
