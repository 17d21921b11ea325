"""What name servers know: the topics of a cluster, and which brokers have queues of them.

Source: DefaultRequestProcessor.java; RouteInfoManager.java; TopicRouteData.java; QueueData.java.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptConfigError,
    OptionError,
    UnsupportedFeatureError,
)
from rmqstore.live.location import LiveLocation
from rmqstore.remoting.client import Address, Answer, RemotingClient
from rmqstore.remoting.codes import RequestCode, ResponseCode
from rmqstore.storage.broker.config_files import MAX_TABLE_BYTES, integer, table_of
from rmqstore.storage.broker.identity import MASTER_ID

# Of a name server that has only just started, or is busy.
_PASSING: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY)
_READABLE: Final = 4  # PermName.java
_WRITABLE: Final = 2
_SILENT_SECONDS: Final = 60.0  # for which a name server that did not answer is passed over
_MOST_QUEUES: Final = 1 << 16  # of a topic at one broker, as far as a route is believed


class BrokerQueues(NamedTuple):
    """The queues of a topic at one broker.

    Attributes:
        read: how many queues may be read, those with the ids from 0 on; 0 without the right.
        write: how many may be written to; 0 without the right.
    """

    read: int
    write: int


class TopicRoute(NamedTuple):
    """Where the queues of a topic are.

    Attributes:
        addresses: by broker name, the addresses of its replicas by broker id.
        queues: by broker name.
    """

    addresses: Mapping[str, Mapping[int, Address]]
    queues: Mapping[str, BrokerQueues]


class NameServers:
    """The name servers of a cluster, which know nothing of one another.

    Each hears of brokers by itself, and one that has only just started has not heard of all. So
    all of them are asked, and what they say is put together.
    """

    def __init__(self, location: LiveLocation) -> None:
        self._location = location
        self._silent: dict[Address, float] = {}  # when each failed to answer

    def topics(self) -> list[str]:
        """Return every topic that a name server knows, sorted.

        Raises:
            BrokerUnreachableError: no name server answered, or what came is not a list.
            BrokerRefusedError: a name server refused.
        """
        known: set[str] = set()
        for answer in self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}):
            topics = self._table(answer).get("topicList")
            if not isinstance(topics, list) or not all(isinstance(one, str) for one in topics):
                raise BrokerUnreachableError(
                    str(self._location), "the list of topics cannot be read"
                )
            known.update(topics)
        return sorted(known)

    def route(self, topic: str) -> TopicRoute | None:
        """Return where the queues of a topic are, None if no broker has it.

        Raises:
            BrokerUnreachableError: no name server answered, or what came is not a route.
            BrokerRefusedError: a name server refused.
            UnsupportedFeatureError: the queues are logical ones, mapped on those of several
                brokers.
        """
        addresses: dict[str, dict[int, Address]] = {}
        queues: dict[str, BrokerQueues] = {}
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        for answer in self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields):
            table = self._table(answer)
            if table.get("topicQueueMappingByBroker"):
                raise UnsupportedFeatureError(
                    f"{topic} is a static topic, whose logical queues are mapped on those of "
                    "several brokers: read the brokers' stores"
                )
            try:
                route = _route(table)
            except (OptionError, ValueError, TypeError, AttributeError, KeyError) as err:
                raise BrokerUnreachableError(
                    str(self._location), f"the route of {topic} cannot be read: {err}"
                ) from err
            for name, replicas in route.addresses.items():
                addresses.setdefault(name, {}).update(replicas)
            for name, counts in route.queues.items():
                other = queues.get(name, counts)
                queues[name] = BrokerQueues(*map(max, counts, other))
        return TopicRoute(addresses, queues) if queues else None

    def _table(self, answer: Answer) -> dict[str, Any]:
        if len(answer.body) > MAX_TABLE_BYTES:
            raise BrokerUnreachableError(
                str(self._location), f"an answer of {len(answer.body)} bytes"
            )
        try:
            return table_of(answer.body)
        except CorruptConfigError as err:
            raise BrokerUnreachableError(str(self._location), err.reason) from err

    def _ask(self, code: int, fields: Mapping[str, str]) -> list[Answer]:
        """Return the answers of all name servers that answer, without those that know nothing.

        Those that did not answer a while ago are asked if no other one answers.
        """
        now = time.monotonic()
        silent = [one for one, since in self._silent.items() if now - since < _SILENT_SECONDS]
        answers: list[Answer] = []
        errors: list[BrokerUnreachableError] = []
        for address in sorted(self._location.name_servers, key=silent.count):
            if address in silent and answers:
                continue
            try:
                with RemotingClient(self._location.endpoint(address)) as client:
                    answer = client.request(code, fields)
                if answer.code in _PASSING:
                    raise BrokerUnreachableError(str(address), answer.remark)  # noqa: TRY301
            except BrokerUnreachableError as err:
                self._silent[address] = now
                errors.append(err)
                continue
            self._silent.pop(address, None)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise BrokerRefusedError(
                    str(address),
                    answer.code,
                    f"{answer.remark.strip()}. It is not a name server, but perhaps a broker or a "
                    "proxy: name servers are given, whose port is 9876 by default",
                )
            if answer.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
                raise BrokerRefusedError(str(address), answer.code, answer.remark)
            answers.append(answer)
        if not answers and len(errors) == 1:
            raise errors[0]
        if not answers:
            reasons = "; ".join(map(str, errors))
            raise BrokerUnreachableError(str(self._location), f"no name server answers: {reasons}")
        return [answer for answer in answers if answer.code == ResponseCode.SUCCESS]


def _route(table: Mapping[str, Any]) -> TopicRoute:
    """Return the route in an answer.

    Raises:
        ValueError, TypeError, AttributeError, KeyError, OptionError: it is not one.
    """
    addresses: dict[str, dict[int, Address]] = {}
    for entry in table.get("brokerDatas") or []:
        replicas = addresses.setdefault(str(entry["brokerName"]), {})
        for number, address in (entry.get("brokerAddrs") or {}).items():
            try:
                replicas[integer(number)] = _address(str(address))
            except OptionError:
                if integer(number) == MASTER_ID:  # no other replica is talked to
                    raise
    if not table.get("queueDatas"):
        raise ValueError("it names no queues")
    queues: dict[str, BrokerQueues] = {}
    for entry in table["queueDatas"]:
        permissions = integer(entry["perm"])
        counts = []
        for bit, name in ((_READABLE, "readQueueNums"), (_WRITABLE, "writeQueueNums")):
            count = integer(entry[name])
            if not 0 <= count <= _MOST_QUEUES:
                raise ValueError(f"{name} {count}")
            counts.append(count if permissions & bit else 0)
        queues[str(entry["brokerName"])] = BrokerQueues(*counts)
    return TopicRoute(addresses, queues)


def _address(text: str) -> Address:
    """Return an address as brokers report it, where IPv6 has no brackets."""
    host, _, port = text.rpartition(":")
    bare = ":" in host and not host.startswith("[")
    return Address.parse(f"[{host}]:{port}" if bare else text)
