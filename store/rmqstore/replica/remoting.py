"""A client of a broker's listen port, and of a name server: frames, signatures, and requests.

Whatever the other side sends, no more is held in memory than one frame may have, and no call takes
longer than its time-out. Only the JSON form of headers is written and read. A broker answers in the
form of the request.

Source: RemotingCommand.java; RemotingSerializable.java; NettyDecoder.java; AclClientRPCHook.java;
AclUtils.java; AclSigner.java; SessionCredentials.java; RequestCode.java; AdminBrokerProcessor.java;
SlaveSynchronize.java; ClusterInfo.java; RouteInfoManager.java#getAllClusterInfo.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import zstandard

from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptConfigError,
    MalformedBytesError,
    OptionError,
)
from rmqstore.storage.broker.config_files import MAX_TABLE_BYTES, integer, table_of
from rmqstore.storage.broker.identity import MASTER_ID
from rmqstore.storage.files.paths import can_name_queues

logger = logging.getLogger(__name__)

LENGTH_BYTES: Final = 4
# A table may be as long as this. Java limits what it receives to 16 MiB, not what it sends.
MAX_BODY_BYTES: Final = 64 << 20
MAX_HEADER_BYTES: Final = 1 << 20
_MAX_FRAME_BYTES: Final = LENGTH_BYTES + MAX_HEADER_BYTES + MAX_BODY_BYTES
_JSON: Final = 0
_TYPE_SHIFT: Final = 24
_HEADER_LENGTH: Final = (1 << _TYPE_SHIFT) - 1
_IS_ANSWER: Final = 1
_INT: Final = struct.Struct(">i")
_MAX_REMARK_CHARACTERS: Final = 500

TIMEOUT_SECONDS: Final = 15.0
# No request has a body that a broker reads. An HA port takes the last 8 bytes that come
# for an acknowledgement: this one, -1, counts nowhere. Any text would be an offset after the end of
# every log, and a SYNC_MASTER of RocketMQ 4 would take all messages for replicated until it ends.
_NO_OFFSET: Final = b"\xff" * 8
_PIECE_BYTES: Final = 256 << 10
_MAX_PORT: Final = (1 << 16) - 1


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        code: 0 for success; see ``ResponseCode.java``.
        opaque: the number of the request.
        remark: why the request failed, empty if it did not.
        body: the bytes after the header.
    """

    code: int
    opaque: int
    remark: str
    body: bytes


def encode_request(
    code: int, opaque: int, fields: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    """Return the frame of a request.

    The body begins at a multiple of 8 bytes: the header has spaces before its end.
    """
    header = json.dumps(
        {
            "code": code,
            "flag": 0,
            "opaque": opaque,
            "language": "PYTHON",
            "version": 0,
            "serializeTypeCurrentRPC": "JSON",
            "extFields": dict(fields or {}),
        },
        separators=(",", ":"),
    ).encode()
    header = header[:-1] + b" " * (-len(header) % 8) + header[-1:]
    length = LENGTH_BYTES + len(header) + len(body)
    return _INT.pack(length) + _INT.pack(_JSON << _TYPE_SHIFT | len(header)) + header + body


def frame_length(head: bytes | bytearray) -> int:
    """Return how many bytes follow the first four of a frame.

    Raises:
        MalformedBytesError: no frame of the protocol has this length.
    """
    length: int = _INT.unpack(head)[0]
    if not LENGTH_BYTES <= length <= _MAX_FRAME_BYTES:
        raise MalformedBytesError(
            0, f"a frame of {length} bytes; {LENGTH_BYTES} to {_MAX_FRAME_BYTES} are possible"
        )
    return length


def decode_answer(frame: bytes | bytearray) -> Answer | None:
    """Return the answer in a frame, given without its first four bytes.

    Returns:
        None if the frame is a request, such as a broker sends to its clients.

    Raises:
        MalformedBytesError: the bytes are not a frame with a JSON header.
    """
    marked: int = _INT.unpack_from(frame)[0]
    kind, size = marked >> _TYPE_SHIFT & 0xFF, marked & _HEADER_LENGTH
    if kind != _JSON:
        raise MalformedBytesError(0, f"a header of type {kind}, and JSON is expected")
    if size > min(len(frame) - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise MalformedBytesError(0, f"a header of {size} bytes in a frame of {len(frame)}")
    stop = LENGTH_BYTES + size
    try:
        header = json.loads(frame[LENGTH_BYTES:stop])
    except (ValueError, RecursionError) as err:
        raise MalformedBytesError(LENGTH_BYTES, f"the header is not JSON: {err}") from err
    if not isinstance(header, dict):
        raise MalformedBytesError(LENGTH_BYTES, "the header is not a JSON object")
    code, opaque, flag = (header.get(name) for name in ("code", "opaque", "flag"))
    if not (type(code) is int and type(opaque) is int and type(flag) is int):
        raise MalformedBytesError(LENGTH_BYTES, "the header has no code, opaque and flag")
    if not flag & _IS_ANSWER:
        return None
    remark = str(header.get("remark") or "")[:_MAX_REMARK_CHARACTERS]
    return Answer(code, opaque, remark, bytes(memoryview(frame)[stop:]))


@dataclass(frozen=True, slots=True)
class Credentials:
    """The access key of a user and its secret, and a token where one is in use."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the fields of a request with those that prove who sends it."""
        all_fields = {**fields, "AccessKey": self.access_key}
        if self.security_token is not None:
            all_fields["SecurityToken"] = self.security_token
        ordered = sorted(all_fields, key=lambda name: name.encode("utf-16-be"))
        content = "".join(all_fields[name] for name in ordered).encode() + body
        digest = hmac.new(self.secret_key.encode(), content, hashlib.sha1).digest()
        return {**all_fields, "Signature": base64.b64encode(digest).decode()}


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
    """A broker's listen port, and how to talk to it.

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

    Attributes:
        endpoint: where it leads.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, self._opaque = endpoint, 0
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
        endpoint = self.endpoint
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


_GET_CLUSTER_INFO: Final = 106
_MOST_WARNINGS: Final = 1000  # that are remembered

_LEVEL: Final = 1

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
        slaves = [self.addresses[each] for each in sorted(self.addresses) if each != MASTER_ID]
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
        answer = client.request(_GET_CLUSTER_INFO)
    if answer.code != _SUCCESS:
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
        integer(broker_id): Address.parse(str(address))
        for broker_id, address in (entry.get("brokerAddrs") or {}).items()
    }
    return RegisteredBroker(name, str(entry.get("cluster") or ""), addresses)


class HeldTable:
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
        return isinstance(other, HeldTable) and self._packed == other._packed

    __hash__ = None  # type: ignore[assignment]

    @property
    def content(self) -> bytes:
        """The table as the broker sent it, unpacked at each call."""
        return zstandard.ZstdDecompressor().decompress(self._packed)


class LogBounds(NamedTuple):
    """The physical offsets where the log of a broker begins and ends."""

    low: int
    high: int

    def reach(self, physical_offset: int) -> bool:
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


class BrokerClient:
    """The requests of a follower, on one connection."""

    def __init__(self, client: RemotingClient) -> None:
        self._client, self._address = client, str(client.endpoint.address)

    def settings(self) -> ServedSettings:
        """Return the settings of the broker.

        Raises:
            BrokerUnreachableError: it did not answer, or not with settings.
            BrokerRefusedError: it refused.
        """
        answer = self._client.request(_GET_CONFIG)
        if answer.code == _NOT_SUPPORTED:  # so name servers and controllers say
            which = "it is not a broker's listen port; name servers are given with "
            reason = f"{which}`namesrv`"
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
        return ServedSettings(given, version)

    def bounds(self) -> LogBounds:
        """Return where the log begins and ends; raises as :meth:`settings` does."""
        table = self._runtime()
        try:
            low, high = (int(table[name]) for name in ("commitLogMinOffset", "commitLogMaxOffset"))
        except (KeyError, TypeError, ValueError, ArithmeticError) as err:
            raise self._unreadable("bounds of the log") from err
        bounds = LogBounds(max(low, 0), max(high, 0))  # -1 without a file
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
            answer = self._client.request(_GET_RUNTIME_INFO)
            table = json.loads(self._small(_GET_RUNTIME_INFO, answer))["table"]
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
            raise BrokerUnreachableError(self._address, answer.remark or f"code {answer.code}")
        if answer.code != _SUCCESS:
            raise BrokerRefusedError(self._address, answer.code, answer.remark)
        return answer

    def _unreadable(self, what: str) -> BrokerUnreachableError:
        return BrokerUnreachableError(self._address, f"the broker's {what} cannot be read")
