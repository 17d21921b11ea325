"""A connection to the ordinary port of a broker: one request, then its answer.

Whatever the other side sends, no more is held in memory than one frame may have, and no call takes
longer than its time-out.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from rmqstore.copying.following.remoting.credentials import Credentials
from rmqstore.copying.following.remoting.frames import (
    LENGTH_BYTES,
    Answer,
    decode_answer,
    encode_request,
    frame_length,
)
from rmqstore.errors import BrokerUnreachableError, MalformedBytesError, OptionError

TIMEOUT_SECONDS: Final = 15.0
# No request has a body that a broker reads. A port for replicas takes the last 8 bytes that come
# for an acknowledgement: this one, -1, counts nowhere. Any text would be an offset after the end of
# every log, and a SYNC_MASTER of RocketMQ 4 would take all messages for replicated until it ends.
_NO_OFFSET: Final = b"\xff" * 8
_PIECE_BYTES: Final = 256 << 10
_MAX_PORT: Final = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address that a text such as ``broker-a:10911`` or ``[::1]:10911`` names.

        Raises:
            OptionError: it is not an address.
        """
        host, colon, port = text.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""
        is_port = port.isascii() and port.isdigit() and len(port) <= len(str(_MAX_PORT))
        if not (colon and host and is_port and 1 <= int(port) <= _MAX_PORT):
            raise OptionError(f"{text!r} is not an address: must be HOST:PORT")
        return cls(host, int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker's ordinary port, and how to talk to it.

    Attributes:
        address: host and port.
        credentials: who asks; None without access control.
        tls: settings of TLS; None for plain text.
        timeout: seconds that a connection, and then each request, may take.
    """

    address: Address
    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None
    timeout: float = TIMEOUT_SECONDS


class RemotingClient:
    """A connection, as a context manager.

    Raises:
        BrokerUnreachableError: the broker cannot be connected to.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint, self._opaque = endpoint, 0
        address = endpoint.address
        try:
            self._socket = socket.create_connection((address.host, address.port), endpoint.timeout)
            if endpoint.tls is not None:
                plain = self._socket
                try:
                    self._socket = endpoint.tls.wrap_socket(plain, server_hostname=address.host)
                except BaseException:
                    plain.close()
                    raise
        except (OSError, ValueError) as err:  # ssl says ValueError of a host that cannot be one
            raise BrokerUnreachableError(str(address), f"no connection: {err}") from err

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _err: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._socket.close()

    def request(self, code: int, fields: Mapping[str, str] | None = None) -> Answer:
        """Send a request and return its answer, whatever its code is.

        Raises:
            BrokerUnreachableError: no answer came in time, or what came is not an answer.
        """
        endpoint = self._endpoint
        given = dict(fields or {})
        if endpoint.credentials is not None:
            given = endpoint.credentials.signed(given, _NO_OFFSET)
        self._opaque += 1
        until = time.monotonic() + endpoint.timeout
        try:
            self._socket.settimeout(endpoint.timeout)
            self._socket.sendall(encode_request(code, self._opaque, given, _NO_OFFSET))
            while True:
                length = frame_length(self._receive(LENGTH_BYTES, until))
                answer = decode_answer(self._receive(length, until))
                if answer is not None and answer.opaque == self._opaque:
                    return answer
        except (OSError, MalformedBytesError) as err:
            raise BrokerUnreachableError(
                str(endpoint.address), f"no answer to request {code}: {err}"
            ) from err

    def _receive(self, count: int, until: float) -> bytearray:
        """Return the next bytes; memory is taken as they come, whatever their number is."""
        received = bytearray()
        while len(received) < count:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
            piece = self._socket.recv(min(count - len(received), _PIECE_BYTES))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            received += piece
        return received
