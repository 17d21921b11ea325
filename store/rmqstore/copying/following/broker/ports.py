"""Where a follower learns about its broker: at the ordinary port, or at the one for replicas alone.

The ordinary port tells everything. The port for replicas tells where the last file of the log
begins, which is where a request for 0 is answered, and by heartbeats where the log ends.

Source: DefaultHAConnection.java#WriteSocketService.
"""

from __future__ import annotations

import struct
import time
from contextlib import closing
from typing import Final, Protocol

from rmqstore.copying.following.broker.source import (
    HEARTBEAT_MS,
    HOUSEKEEPING_MS,
    Facts,
    Source,
    ask,
    ask_bounds,
    require_master,
    source_of,
)
from rmqstore.copying.following.remoting.broker import Bounds, Broker, BrokerSettings
from rmqstore.copying.following.remoting.client import Address, Endpoint, RemotingClient
from rmqstore.copying.following.streams.connection import Connection, ConnectionEndedError
from rmqstore.copying.following.streams.ha_stream import HaStream
from rmqstore.errors import BrokerUnreachableError, OptionError, about
from rmqstore.storage.broker.store_config import StoreConfig

_HEADER: Final = struct.Struct(">qi")
_MAX_OFFSET: Final = 1 << 62
_POLL_SECONDS: Final = 0.1


class Informant(Protocol):
    """Where a follower learns about its broker. All methods raise what :meth:`ask` raises."""

    @property
    def tells_all(self) -> bool:
        """Whether settings, tables and the end of the log are told."""

    def ask(self) -> Facts:
        """Return everything that is told.

        Raises:
            BrokerUnreachableError: the broker does not answer; a later attempt may succeed.
            BrokerRefusedError: it refused.
        """

    def bounds(self, position: int) -> Bounds:
        """Return where the log begins and ends.

        Args:
            position: physical offset at which the broker said by a heartbeat that it goes on.
        """

    def record_at(self, physical_offset: int) -> bytes:
        """Return the record at a physical offset, empty if it is not told."""

    def source(self, settings: BrokerSettings) -> Source:
        """Return the broker that settings describe; raises as ``source_of`` does, too."""

    def require_master(self) -> None:
        """Refuse a broker in controller mode that is not the master of its group by now."""


class OrdinaryPort:
    """The ordinary port of a broker.

    Args:
        endpoint: the port.
        ha_address: where the broker serves replicas, None as it says itself.
        allow_sync_master: a SYNC_MASTER of RocketMQ 4 is not refused.
        acknowledges: whether the follower acknowledges what it has.
    """

    tells_all = True

    def __init__(
        self,
        endpoint: Endpoint,
        ha_address: Address | None = None,
        *,
        allow_sync_master: bool = False,
        acknowledges: bool = False,
    ) -> None:
        self._endpoint, self._ha_address = endpoint, ha_address
        self._allow_sync_master, self._acknowledges = allow_sync_master, acknowledges

    def ask(self) -> Facts:
        """Return everything that is told, with the tables."""
        return ask(self._endpoint, with_tables=True)

    def bounds(self, position: int) -> Bounds:  # noqa: ARG002 - it is told without
        """Return where the log begins and ends."""
        return ask_bounds(self._endpoint)

    def record_at(self, physical_offset: int) -> bytes:
        """Return the record at a physical offset, empty if the broker does not return it."""
        with RemotingClient(self._endpoint) as client:
            return Broker(client, str(self._endpoint.address)).record_at(physical_offset)

    def source(self, settings: BrokerSettings) -> Source:
        """Return the broker that settings describe."""
        return source_of(
            settings,
            self._endpoint,
            self._ha_address,
            allow_sync_master=self._allow_sync_master,
            acknowledges=self._acknowledges,
        )

    def require_master(self) -> None:
        """Refuse a broker in controller mode that is not the master of its group by now."""
        facts = ask(self._endpoint, with_tables=False)
        require_master(facts.settings, str(self._endpoint.address))


class ReplicaPort:
    """The port for replicas of a broker in default mode, where the ordinary one is out of reach.

    Args:
        address: the port.
        file_size: bytes of each file of the log.
        patience: seconds that an answer may take.
    """

    tells_all = False

    def __init__(self, address: Address, file_size: int, patience: float) -> None:
        self._address, self._file_size, self._patience = address, file_size, patience
        self._low = 0  # the log is known to begin at or after this, whatever it was before

    def ask(self) -> Facts:
        """Return where the last file of the log begins; of the rest, nothing is known."""
        asked_at = time.monotonic()
        last = self._last_file()
        return Facts(
            BrokerSettings({}, ()), {}, Bounds(self._low, last), asked_at, time.monotonic()
        )

    def bounds(self, position: int) -> Bounds:
        """Return where the log ends; where it begins, only after it does not have a position.

        A broker sends heartbeats at the end of its log, and where it has deleted what comes next.
        """
        last = self._last_file()
        if position < last:
            self._low = last
        return Bounds(self._low, max(position, last))

    def record_at(self, physical_offset: int) -> bytes:  # noqa: ARG002 - nothing is told
        """Return nothing: there is no other port to compare with."""
        return b""

    def source(self, settings: BrokerSettings) -> Source:  # noqa: ARG002 - nothing is told
        """Return a broker whose names and settings are not known."""
        return Source(
            "", "", self._file_size, self._address, StoreConfig(), "", 0,
            heartbeat=HEARTBEAT_MS / 1000, housekeeping=HOUSEKEEPING_MS / 1000, mode="default",
        )  # fmt: skip

    def require_master(self) -> None:
        """Do nothing: the broker is not in controller mode."""

    def _last_file(self) -> int:
        """Ask for 0, which stands for the start of the last file, and return where that is."""
        name = str(self._address)
        try:
            with closing(Connection(self._address, self._patience)) as connection:
                connection.send(HaStream(0).report(0))
                offset, size = self._first_header(connection)
        except ConnectionEndedError as err:
            raise BrokerUnreachableError(name, f"as a port for replicas: {err}") from err
        if not 0 <= offset < _MAX_OFFSET or size < 0:
            raise BrokerUnreachableError(
                name, f"as a port for replicas: it sends {size} bytes from {offset} on"
            )
        if offset % self._file_size:
            raise OptionError(
                about(
                    "file_size",
                    f" {self._file_size}: the last file of the broker at {name} begins at {offset}",
                )
            )
        return offset

    def _first_header(self, connection: Connection) -> tuple[int, int]:
        until = time.monotonic() + self._patience
        header = memoryview(bytearray(_HEADER.size))
        n_come = 0
        while n_come < len(header):
            n_come += connection.receive(header[n_come:], _POLL_SECONDS)
            if n_come < len(header) and time.monotonic() > until:
                raise ConnectionEndedError(
                    f"nothing came for {self._patience:.0f} s: is it the port for replicas of a "
                    "broker in default mode?"
                )
        offset, size = _HEADER.unpack(header)
        return offset, size
