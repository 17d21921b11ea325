"""Requests to brokers and name servers: identity, bounds of the log, tables, and routes.

Source: RequestCode.java; AdminBrokerProcessor.java; SlaveSynchronize.java; ClusterInfo.java;
RouteInfoManager.java#getAllClusterInfo.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import zstandard

from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptConfigError,
    OptionError,
)
from rmqstore.remoting import (
    OF_5,
    Address,
    Answer,
    Endpoint,
    RemotingClient,
    RequestCode,
    ResponseCode,
    is_answered,
)
from rmqstore.storage.broker.config_files import MAX_TABLE_BYTES, integer, table_of
from rmqstore.storage.broker.identity import MASTER_ID
from rmqstore.storage.files.paths import MAX_OFFSET, can_name_queues

logger = logging.getLogger(__name__)

_MOST_WARNINGS: Final = 1000  # that are remembered

_LEVEL: Final = 1

# Answers that another attempt may change.
_PASSING: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY)
TOPICS: Final = "topics.json"
# The files under config/ that a slave has of its master, and the requests for them.
TABLES: Final[Mapping[str, int]] = {
    TOPICS: RequestCode.GET_ALL_TOPIC_CONFIG,
    "consumerOffset.json": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "delayOffset.json": RequestCode.GET_ALL_DELAY_OFFSET,
    "subscriptionGroup.json": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    "messageRequestMode.json": RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
}
_MAX_SMALL_BYTES: Final = 1 << 20
_VERSION: Final = re.compile(r"V(\d+)_(\d+)_(\d+)")


class RegisteredBroker(NamedTuple):
    """A broker as a name server knows it: one name, and an address for each of its replicas."""

    name: str
    cluster: str
    addresses: Mapping[int, Address]

    def address(self, current: Address | None, *, prefers_slave: bool) -> Address | None:
        """Return where the broker is followed, None if nobody there can be.

        Args:
            current: where it is followed now. A slave is kept as long as it is registered.
            prefers_slave: take a slave if there is one.
        """
        replicas = sorted(self.addresses.items())
        slaves = [address for number, address in replicas if number != MASTER_ID]
        if prefers_slave and slaves:
            return current if current in slaves else slaves[0]
        return self.addresses.get(MASTER_ID)


def registered_brokers(endpoint: Endpoint) -> list[RegisteredBroker]:
    """Ask a name server for all brokers that are registered, sorted by their names.

    Anybody can register a broker. One that cannot be copied is left out, with a warning.

    Raises:
        BrokerUnreachableError: it did not answer.
        BrokerRefusedError: it refused.
    """
    name = str(endpoint.address)
    with RemotingClient(endpoint) as client:
        answer = client.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerRefusedError(name, answer.code, answer.remark)
    if len(answer.body) > MAX_TABLE_BYTES:
        raise BrokerUnreachableError(name, f"an answer of {len(answer.body)} bytes")
    try:
        entries = sorted((table_of(answer.body).get("brokerAddrTable") or {}).items())
    except (CorruptConfigError, ValueError, TypeError, AttributeError) as err:
        raise BrokerUnreachableError(name, f"the list of brokers cannot be read: {err}") from err
    brokers = []
    for broker, entry in entries:
        try:
            brokers.append(_broker(broker, entry))
        except (OptionError, ValueError, TypeError, AttributeError) as err:
            _warn_once(f"{name}: broker {broker!r} is not followed: {err}")
    return brokers


@lru_cache(maxsize=_MOST_WARNINGS)
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def _broker(name: str, entry: Any) -> RegisteredBroker:  # noqa: ANN401 - any JSON
    """Return one broker of the answer.

    Raises:
        ValueError, TypeError, AttributeError, OptionError: it is not one that could be copied.
    """
    if not can_name_queues(name) or name.startswith("."):
        raise ValueError(f"{name!r} cannot be the name of a folder")
    addresses = {
        integer(broker_id): Address.reported(str(address))
        for broker_id, address in (entry.get("brokerAddrs") or {}).items()
    }
    return RegisteredBroker(name, str(entry.get("cluster") or ""), addresses)


class PackedTable:
    """A table of a broker, compressed: several wait until the copy has come as far as they have.

    Two are equal if their contents are.

    Args:
        content: JSON, at most 64 MiB.
    """

    __slots__ = ("_packed",)

    def __init__(self, content: bytes) -> None:
        # What the library returns reserves as much memory as the content takes; a copy does not.
        self._packed = bytes(memoryview(zstandard.ZstdCompressor(_LEVEL).compress(content)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedTable) and self._packed == other._packed

    __hash__ = None  # type: ignore[assignment]

    @property
    def content(self) -> bytes:
        """The table as the broker sent it, unpacked at each call."""
        return zstandard.ZstdDecompressor().decompress(self._packed)


class LogBounds(NamedTuple):
    """The physical offsets where the log of a broker begins and ends."""

    low: int
    high: int

    def contains(self, physical_offset: int) -> bool:
        """Return whether the log has a physical offset, or ends there."""
        return self.low <= physical_offset <= self.high


class ServedSettings(NamedTuple):
    """The settings of a broker that concern its log, its replicas and the sizes of its files.

    Attributes:
        given: the settings under their own names, without any secret.
        version: such as (5, 3, 3); () if the broker does not say.
    """

    given: Mapping[str, str]
    version: tuple[int, ...]

    def text(self, name: str) -> str:
        """Return a setting, empty if the broker does not have it."""
        return self.given.get(name, "")

    def is_on(self, name: str) -> bool:
        """Return whether a setting is true."""
        return self.text(name).lower() == "true"

    def number(self, name: str, default: int) -> int:
        """Return a setting that is a whole number, ``default`` if it is not one."""
        text = self.text(name)
        if not re.fullmatch(r"[0-9]{1,18}", text):
            return default
        return int(text)


# All others stay unread: among the settings of a broker are credentials.
_SETTINGS: Final[tuple[str, ...]] = (
    "brokerClusterName", "brokerName", "brokerId", "brokerRole", "haListenPort",
    "haSlaveFallbehindMax", "haSendHeartbeatInterval", "haHousekeepingInterval",
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue", "maxHashSlotNum", "maxIndexNum", "messageIndexEnable",
    "enableControllerMode", "enableDLegerCommitLog", "duplicationEnable", "inSyncReplicas",
    "storeType",
)  # fmt: skip


class BrokerClient(RemotingClient):
    """A connection to a broker, with the requests of a follower."""

    def settings(self) -> ServedSettings:
        """Return the settings of the broker.

        Raises:
            BrokerUnreachableError: it did not answer, or not with settings.
            BrokerRefusedError: it refused.
        """
        answer = self.request(RequestCode.GET_BROKER_CONFIG)
        # So name servers and controllers say.
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            reason = "it is not a broker's listen port; name servers are given with `namesrv`"
            raise BrokerRefusedError(str(self.endpoint.address), answer.code, reason)
        text = self._small(RequestCode.GET_BROKER_CONFIG, answer).decode("utf-8", "replace")
        # MixAll.java#properties2String writes names and values as they are, without any escapes.
        lines = (line.partition("=") for line in text.split("\n"))
        values = {name.strip(): value.strip() for name, _, value in lines}
        given = {name: values[name] for name in _SETTINGS if name in values}
        described = str(self._runtime().get("brokerVersionDesc", ""))
        numbers = _VERSION.match(described)
        try:
            version = tuple(map(int, numbers.groups())) if numbers else ()
        except ValueError as err:  # too many digits
            raise self._unreadable("version") from err
        return ServedSettings(given, version)

    def bounds(self) -> LogBounds:
        """Return where the log begins and ends; raises as :meth:`settings` does."""
        table = self._runtime()
        try:
            low, high = (int(table[name]) for name in ("commitLogMinOffset", "commitLogMaxOffset"))
        except (KeyError, TypeError, ValueError, ArithmeticError) as err:
            raise self._unreadable("bounds of the log") from err
        bounds = LogBounds(max(low, 0), max(high, 0))  # -1 without a file
        if not bounds.low <= bounds.high < MAX_OFFSET:
            raise self._unreadable("bounds of the log")
        return bounds

    def tables(self) -> dict[str, PackedTable]:
        """Return the tables that the broker has, by the names of their files.

        Raises as :meth:`settings` does.
        """
        found = {}
        version = 0
        for name, code in TABLES.items():
            if not is_answered(code, version):
                continue
            answer = self.request(code)
            version = answer.version
            if code in OF_5 and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                continue
            found[name] = PackedTable(self._checked(answer).body)
        return found

    def record_at(self, physical_offset: int) -> bytes:
        """Return the record at a physical offset, empty if the broker does not return it.

        Raises:
            BrokerUnreachableError: it did not answer.

        Source: QueryMessageProcessor.java#viewMessageById.
        """
        answer = self.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)})
        return bytes(answer.body) if answer.code == ResponseCode.SUCCESS else b""

    def _runtime(self) -> dict[str, Any]:
        try:
            answer = self.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            table = json.loads(self._small(RequestCode.GET_BROKER_RUNTIME_INFO, answer))["table"]
        except (ValueError, KeyError, TypeError, RecursionError) as err:
            raise self._unreadable("runtime information") from err
        if not isinstance(table, dict):
            raise self._unreadable("runtime information")
        return table

    def _small(self, code: int, answer: Answer) -> bytes:
        body = self._checked(answer).body
        if len(body) > _MAX_SMALL_BYTES:
            raise self._unreadable(f"answer of {len(body)} bytes to request {code}")
        return body

    def _checked(self, answer: Answer) -> Answer:
        if answer.code in _PASSING:
            raise BrokerUnreachableError(str(self.endpoint.address), answer.reason)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefusedError(str(self.endpoint.address), answer.code, answer.remark)
        return answer

    def _unreadable(self, what: str) -> BrokerUnreachableError:
        reason = f"the broker's {what} cannot be read"
        return BrokerUnreachableError(str(self.endpoint.address), reason)
