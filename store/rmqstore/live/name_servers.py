"""What name servers know: the topics of a cluster, and which brokers have queues of them.

Source: DefaultRequestProcessor.java; RouteInfoManager.java; TopicRouteData.java; QueueData.java.
"""

from __future__ import annotations

import logging
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
from rmqstore.storage.broker.config_files import MAX_TABLE_BYTES, integer, table_of
from rmqstore.storage.broker.identity import MASTER_ID

logger = logging.getLogger(__name__)

_SUCCESS: Final = 0
_TOPIC_NOT_EXIST: Final = 17
_GET_ROUTE: Final = 105
_GET_ALL_TOPICS: Final = 206
_READABLE: Final = 4  # PermName.java
_WRITABLE: Final = 2
_MOST_QUEUES: Final = 1 << 16  # of a topic at one broker, as far as a route is believed


class BrokerQueues(NamedTuple):
    """The queues of a topic at one broker.

    Attributes:
        read: how many queues may be read, those with the ids from 0 on.
        write: how many may be written to.
    """

    read: int
    write: int


class TopicRoute(NamedTuple):
    """Where the queues of a topic are.

    Attributes:
        addresses: by broker name, the addresses of its replicas by broker id.
        queues: by broker name; brokers that allow neither reads nor writes have none.
    """

    addresses: Mapping[str, Mapping[int, Address]]
    queues: Mapping[str, BrokerQueues]

    def address(self, broker: str) -> Address | None:
        """Return where a broker is reached: its master, else the replica with the least id."""
        replicas = self.addresses.get(broker, {})
        if MASTER_ID in replicas:
            return replicas[MASTER_ID]
        return replicas[min(replicas)] if replicas else None


class NameServers:
    """The name servers of a cluster, of which the first that answers is asked."""

    def __init__(self, location: LiveLocation) -> None:
        self._location = location
        self._addresses = [*location.name_servers]

    def topics(self) -> list[str]:
        """Return every topic that the name servers know, sorted.

        Raises:
            BrokerUnreachableError: no name server answered, or what came is not a list.
            BrokerRefusedError: a name server refused.
        """
        answer = self._ask(_GET_ALL_TOPICS, {})
        topics = self._table(answer).get("topicList")
        if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
            raise BrokerUnreachableError(str(self._location), "the list of topics cannot be read")
        return sorted(set(topics))

    def route(self, topic: str) -> TopicRoute | None:
        """Return where the queues of a topic are, None if no broker has it.

        Raises:
            BrokerUnreachableError: no name server answered, or what came is not a route.
            BrokerRefusedError: a name server refused.
            UnsupportedFeatureError: the queues are logical ones, mapped on those of several
                brokers.
        """
        answer = self._ask(_GET_ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"})
        if answer is None:
            return None
        table = self._table(answer)
        if table.get("topicQueueMappingByBroker"):
            raise UnsupportedFeatureError(
                f"{topic} is a static topic, whose logical queues are mapped on those of several "
                "brokers: read the brokers' stores"
            )
        try:
            return _route(table)
        except (OptionError, ValueError, TypeError, AttributeError, KeyError) as err:
            raise BrokerUnreachableError(
                str(self._location), f"the route of {topic} cannot be read: {err}"
            ) from err

    def _table(self, answer: Answer | None) -> dict[str, Any]:
        body = b"" if answer is None else answer.body
        if len(body) > MAX_TABLE_BYTES:
            raise BrokerUnreachableError(str(self._location), f"an answer of {len(body)} bytes")
        try:
            return table_of(body)
        except CorruptConfigError as err:
            raise BrokerUnreachableError(str(self._location), err.reason) from err

    def _ask(self, code: int, fields: Mapping[str, str]) -> Answer | None:
        """Return the answer of the first name server that gives one, None for no such topic."""
        errors = []
        for address in [*self._addresses]:
            try:
                with RemotingClient(self._location.endpoint(address)) as client:
                    answer = client.request(code, fields)
            except BrokerUnreachableError as err:
                errors.append(err)
                continue
            if address != self._addresses[0]:
                self._addresses.remove(address)
                self._addresses.insert(0, address)
            if answer.code == _TOPIC_NOT_EXIST:
                return None
            if answer.code != _SUCCESS:
                raise BrokerRefusedError(str(address), answer.code, answer.remark)
            return answer
        if len(errors) == 1:
            raise errors[0]
        reasons = "; ".join(map(str, errors))
        raise BrokerUnreachableError(str(self._location), f"no name server answers: {reasons}")


def _route(table: Mapping[str, Any]) -> TopicRoute:
    """Return the route in an answer.

    Raises:
        ValueError, TypeError, AttributeError, KeyError, OptionError: it is not one.
    """
    addresses = {
        str(entry["brokerName"]): {
            integer(number): Address.parse(str(address))
            for number, address in (entry.get("brokerAddrs") or {}).items()
        }
        for entry in table.get("brokerDatas") or []
    }
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
        if any(counts):
            queues[str(entry["brokerName"])] = BrokerQueues(*counts)
    return TopicRoute(addresses, queues)
