"""What a follower asks of a broker: who it is, how far its log reaches, and its tables.

Source: RequestCode.java; AdminBrokerProcessor.java; SlaveSynchronize.java.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rmqstore.copying.following.remoting.client import RemotingClient
from rmqstore.copying.following.remoting.frames import Answer
from rmqstore.copying.following.remoting.held_table import HeldTable
from rmqstore.errors import Argument, BrokerRefusedError, BrokerUnreachableError, Text

_SUCCESS: Final = 0
_NOT_SUPPORTED: Final = 3
# Answers that another attempt may change: SYSTEM_ERROR and SYSTEM_BUSY.
_PASSING: Final = {1, 2}
_GET_CONFIG: Final = 26
_VIEW_MESSAGE: Final = 33
_GET_RUNTIME_INFO: Final = 28
TOPICS: Final = "topics.json"
# The files under config/ that a slave has of its master, and the requests for them.
TABLES: Final[Mapping[str, int]] = {
    TOPICS: 21,
    "consumerOffset.json": 43,
    "delayOffset.json": 45,
    "subscriptionGroup.json": 201,
    "messageRequestMode.json": 402,
}
_OPTIONAL_TABLES: Final = {"messageRequestMode.json"}  # 4.x does not have it
_MAX_OFFSET: Final = 1 << 62
_MAX_SMALL_BYTES: Final = 1 << 20
_VERSION: Final = re.compile(r"V(\d+)_(\d+)_(\d+)")


class Bounds(NamedTuple):
    """The physical offsets where the log of a broker begins and ends."""

    low: int
    high: int

    def reach(self, physical_offset: int) -> bool:
        """Tell whether the log has a physical offset, or ends there."""
        return self.low <= physical_offset <= self.high


class BrokerSettings(NamedTuple):
    """The settings of a broker that concern its log, its replicas and the sizes of its files.

    Attributes:
        given: the settings under their own names, without any secret.
        version: such as (5, 3, 3); () if the broker does not tell.
    """

    given: Mapping[str, str]
    version: tuple[int, ...]

    def text(self, name: str) -> str:
        """Return a setting, empty if the broker does not have it."""
        return self.given.get(name, "")

    def is_on(self, name: str) -> bool:
        """Tell whether a setting is true."""
        return self.text(name).lower() == "true"

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a setting that is a whole number, ``default`` if it is not one."""
        text = self.text(name)
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else default


# All others stay unread: among the settings of a broker are credentials.
_SETTINGS: Final[tuple[str, ...]] = (
    "brokerClusterName", "brokerName", "brokerId", "brokerRole", "haListenPort",
    "haSlaveFallbehindMax", "haSendHeartbeatInterval", "haHousekeepingInterval",
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue", "maxHashSlotNum", "maxIndexNum", "messageIndexEnable",
    "enableControllerMode", "enableDLegerCommitLog", "duplicationEnable", "inSyncReplicas",
    "storeType",
)  # fmt: skip


class Broker:
    """The requests of a follower, on one connection."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client, self._address = client, address

    def settings(self) -> BrokerSettings:
        """Return the settings of the broker.

        Raises:
            BrokerUnreachableError: it did not answer, or not with settings.
            BrokerRefusedError: it refused.
        """
        answer = self._client.request(_GET_CONFIG)
        if answer.code == _NOT_SUPPORTED:  # so name servers and controllers say
            which = "it is not a broker's ordinary port; name servers are given with "
            reason = Text(which, Argument("namesrv"))
            raise BrokerRefusedError(self._address, answer.code, reason)
        text = self._small(_GET_CONFIG, answer).decode("utf-8", "replace")
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
        return BrokerSettings(given, version)

    def bounds(self) -> Bounds:
        """Return where the log begins and ends; raises as :meth:`settings` does."""
        table = self._runtime()
        try:
            low, high = (int(table[name]) for name in ("commitLogMinOffset", "commitLogMaxOffset"))
        except (KeyError, TypeError, ValueError, ArithmeticError) as err:
            raise self._unreadable("bounds of the log") from err
        bounds = Bounds(max(low, 0), max(high, 0))  # -1 without a file
        if not bounds.low <= bounds.high < _MAX_OFFSET:
            raise self._unreadable("bounds of the log")
        return bounds

    def tables(self) -> dict[str, HeldTable]:
        """Return the tables that the broker has, by the names of their files.

        Raises as :meth:`settings` does.
        """
        found = {}
        for name, code in TABLES.items():
            answer = self._client.request(code)
            if answer.code == _NOT_SUPPORTED and name in _OPTIONAL_TABLES:
                continue
            found[name] = HeldTable(self._checked(answer).body)
        return found

    def record_at(self, physical_offset: int) -> bytes:
        """Return the record at a physical offset, empty if the broker does not return it.

        Raises:
            BrokerUnreachableError: it did not answer.

        Source: QueryMessageProcessor.java#viewMessageById.
        """
        answer = self._client.request(_VIEW_MESSAGE, {"offset": str(physical_offset)})
        return bytes(answer.body) if answer.code == _SUCCESS else b""

    def _runtime(self) -> dict[str, Any]:
        try:
            table = json.loads(self._ask_small(_GET_RUNTIME_INFO))["table"]
        except (ValueError, KeyError, TypeError, RecursionError) as err:
            raise self._unreadable("runtime information") from err
        if not isinstance(table, dict):
            raise self._unreadable("runtime information")
        return table

    def _ask_small(self, code: int) -> bytes:
        return self._small(code, self._client.request(code))

    def _small(self, code: int, answer: Answer) -> bytes:
        body = self._checked(answer).body
        if len(body) > _MAX_SMALL_BYTES:
            raise self._unreadable(f"answer of {len(body)} bytes to request {code}")
        return body

    def _checked(self, answer: Answer) -> Answer:
        if answer.code in _PASSING:
            raise BrokerUnreachableError(self._address, answer.remark or f"code {answer.code}")
        if answer.code != _SUCCESS:
            raise BrokerRefusedError(self._address, answer.code, answer.remark)
        return answer

    def _unreadable(self, what: str) -> BrokerUnreachableError:
        return BrokerUnreachableError(self._address, f"the broker's {what} cannot be read")
