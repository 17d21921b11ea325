"""The remoting protocol: codes, frames, signatures, and a client of brokers and name servers.

Whatever the other side sends, no more is held in memory than one frame may have, and no call takes
longer than its time-out. Headers are written as JSON. A server answers in the form that it was
started with, which may be the binary one.

Source: RemotingCommand.java; RemotingSerializable.java; RocketMQSerializable.java;
NettyDecoder.java; AclClientRPCHook.java; AclUtils.java; AclSigner.java; SessionCredentials.java;
RequestCode.java; ResponseCode.java; RemotingSysResponseCode.java.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import socket
import ssl
import struct
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple, Self

import orjson

from rmqstore import platforms
from rmqstore.errors import BrokerUnreachableError, MalformedBytesError, OptionError

LENGTH_BYTES: Final = 4
# A table may be as long as this. Java limits what it receives to 16 MiB, not what it sends.
MAX_BODY_BYTES: Final = 64 << 20
MAX_HEADER_BYTES: Final = 1 << 20
_MAX_FRAME_BYTES: Final = LENGTH_BYTES + MAX_HEADER_BYTES + MAX_BODY_BYTES
_JSON: Final = 0
_BINARY: Final = 1
_TYPE_SHIFT: Final = 24
_HEADER_LENGTH: Final = (1 << _TYPE_SHIFT) - 1
_IS_ANSWER: Final = 1
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_FIXED_HEADER: Final = struct.Struct(">hbhiii")  # code, language, version, opaque, flag, remark
_MAX_REMARK_CHARACTERS: Final = 500
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)

TIMEOUT_SECONDS: Final = 15.0
# No request has a body that a broker reads. An HA port takes the last 8 bytes that come
# for an acknowledgement: this one, -1, counts nowhere. Any text would be an offset after the end of
# every log, and a SYNC_MASTER of RocketMQ 4 would take all messages for replicated until it ends.
_NO_OFFSET: Final = b"\xff" * 8
_BUFFER_BYTES: Final = 512 << 10  # of what came and was not taken; more only for a longer frame
_MAX_PORT: Final = (1 << 16) - 1


class RequestCode(IntEnum):
    """What is asked of name servers and brokers, by RocketMQ's names."""

    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    GET_ALL_TOPIC_CONFIG = 21
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    VIEW_MESSAGE_BY_ID = 33
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    GET_TOPIC_CONFIG = 351
    GET_ALL_MESSAGE_REQUEST_MODE = 402


class ResponseCode(IntEnum):
    """The codes of answers; other codes are passed on as they are."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    INVALID_PARAMETER = 29
    GO_AWAY = 1500


_FIRST_OF_5: Final = 412  # Source: MQVersion.java, V5_0_0_SNAPSHOT
# Requests that brokers before 5.0 do not know.
OF_5: Final = frozenset({RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE})


def is_answered(code: int, version: int) -> bool:
    """Return whether a broker answers a request: before 5.0, none that it does not know.

    Args:
        code: of the request.
        version: of the broker, as its answers say it; 0 if it is not known.

    Source: AdminBrokerProcessor.java of 4.x.
    """
    return code not in OF_5 or not 0 < version < _FIRST_OF_5


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        code: 0 for success; see ``ResponseCode.java``.
        opaque: the number of the request.
        remark: why the request failed, empty if it did not.
        body: the bytes after the header.
        fields: what the header says besides.
        version: of RocketMQ at the server, a number of ``MQVersion.java``; 0 if it does not say.
    """

    code: int
    opaque: int
    remark: str
    body: bytes
    fields: Mapping[str, str] = MappingProxyType({})
    version: int = 0

    @property
    def is_of_proxy(self) -> bool:
        """Whether a proxy passed on the answer of a broker; not known for answers to sends.

        Source: AbstractRemotingActivity.java#writeResponse.
        """
        return "TRACE_ON" in self.fields

    @property
    def reason(self) -> str:
        """Why the request failed, or its code where the server does not say."""
        return self.remark or f"code {self.code}"

    def number(self, name: str) -> int:
        """Return a field that holds an integer.

        Raises:
            MalformedBytesError: there is no such field, or it holds none of 64 bits.
        """
        text = self.fields.get(name, "")
        if not _NUMBER.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
            raise MalformedBytesError(0, f"field {name} of the answer is {text[:50]!r}")
        return int(text)


def encode_request(code: int, opaque: int, fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the frame of a request.

    The body begins at a multiple of 8 bytes: the header has spaces before its end.
    """
    try:
        header = orjson.dumps(
            {
                "code": code,
                "flag": 0,
                "opaque": opaque,
                "language": "PYTHON",
                "version": 0,
                "serializeTypeCurrentRPC": "JSON",
                "extFields": dict(fields),
            }
        )
    except TypeError as err:
        raise OptionError(f"a field of request {code} is not text that can be sent: {err}") from err
    header = header[:-1] + b" " * (-len(header) % 8) + header[-1:]
    length = LENGTH_BYTES + len(header) + len(body)
    return _INT.pack(length) + _INT.pack(_JSON << _TYPE_SHIFT | len(header)) + header + body


def frame_length(head: bytes | memoryview) -> int:
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


def decode_answer(frame: bytes | memoryview) -> Answer | None:
    """Return the answer in a frame, given without its first four bytes.

    Returns:
        None if the frame is a request, such as a broker sends to its clients.

    Raises:
        MalformedBytesError: the bytes are not a frame with a header.
    """
    marked: int = _INT.unpack_from(frame)[0]
    kind, size = marked >> _TYPE_SHIFT & 0xFF, marked & _HEADER_LENGTH
    if kind not in (_JSON, _BINARY):
        raise MalformedBytesError(0, f"a header of type {kind}; JSON is 0, ROCKETMQ 1")
    if size > min(len(frame) - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise MalformedBytesError(0, f"a header of {size} bytes in a frame of {len(frame)}")
    stop = LENGTH_BYTES + size
    header = memoryview(frame)[LENGTH_BYTES:stop]
    read = (_json if kind == _JSON else _binary)(bytes(header))
    code, opaque, flag, remark, fields, version = read
    if not flag & _IS_ANSWER:
        return None
    remark = printable(remark[:_MAX_REMARK_CHARACTERS])
    return Answer(code, opaque, remark, bytes(memoryview(frame)[stop:]), fields, version)


def printable(text: str) -> str:
    """Return a text of a server on one line, in which a terminal finds nothing to obey."""
    if text.isprintable():
        return text
    shown = ""
    for char in text:
        if char.isspace():
            shown += " "
        elif char.isprintable():
            shown += char
        else:
            shown += ascii(char)[1:-1]
    return shown


_Header = tuple[int, int, int, str, dict[str, str], int]  # as they are in an answer, and the flag


def _json(stored: bytes) -> _Header:
    try:
        header = orjson.loads(stored)
    except ValueError as err:
        raise MalformedBytesError(LENGTH_BYTES, f"the header is not JSON: {err}") from err
    if not isinstance(header, dict):
        raise MalformedBytesError(LENGTH_BYTES, "the header is not a JSON object")
    code, opaque, flag = (header.get(name) for name in ("code", "opaque", "flag"))
    if not (type(code) is int and type(opaque) is int and type(flag) is int):
        raise MalformedBytesError(LENGTH_BYTES, "the header has no code, opaque and flag")
    fields = header.get("extFields")
    given = {}
    if isinstance(fields, dict):
        given = {name: str(value) for name, value in fields.items()}
    version = header.get("version")
    if type(version) is not int:
        version = 0
    return code, opaque, flag, str(header.get("remark") or ""), given, version


def _binary(stored: bytes) -> _Header:
    """Return a header of type ROCKETMQ, in which a server may be set to answer.

    Source: RocketMQSerializable.java.
    """
    try:
        code, _, version, opaque, flag, length = _FIXED_HEADER.unpack_from(stored)
        at = _FIXED_HEADER.size
        remark, at = _text(stored, at, length)
        (length,) = _INT.unpack_from(stored, at)
        at += _INT.size
        end = at + max(length, 0)
        fields = {}
        while at < end:
            (length,) = _SHORT.unpack_from(stored, at)
            name, at = _text(stored, at + _SHORT.size, length)
            (length,) = _INT.unpack_from(stored, at)
            fields[name], at = _text(stored, at + _INT.size, length)
    except (struct.error, UnicodeDecodeError) as err:
        raise MalformedBytesError(LENGTH_BYTES, f"the header cannot be read: {err}") from err
    return code, opaque, flag, remark, fields, version


def _text(stored: bytes, at: int, length: int) -> tuple[str, int]:
    """Return a text and the position after it."""
    if not 0 <= length <= len(stored) - at:
        raise MalformedBytesError(LENGTH_BYTES + at, f"a text of {length} bytes in the header")
    return stored[at : at + length].decode(), at + length


@dataclass(frozen=True, slots=True)
class Credentials:
    """The access key of a user and its secret, and a token where one is in use."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the fields of a request with its signature."""
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
        is_host = host != "" and host.isprintable()
        if not (colon and is_host and is_port and 1 <= int(port) <= _MAX_PORT):
            raise OptionError(f"{text!r} is not an address: must be HOST:PORT")
        return cls(host, int(port))

    @classmethod
    def reported(cls, text: str) -> Address:
        """Return an address as brokers report it, where IPv6 may have no brackets.

        Raises:
            OptionError: it is not an address.
        """
        host, _, port = text.rpartition(":")
        bare = ":" in host and not host.startswith("[")
        return cls.parse(f"[{host}]:{port}" if bare else text)

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
        self._asked = ""  # the name of the request that was sent last
        # What came and was not taken yet is in the buffer from start to stop.
        self._buffer, self._start, self._stop = bytearray(_BUFFER_BYTES), 0, 0
        address = endpoint.address
        try:
            self._socket = socket.create_connection((address.host, address.port), endpoint.timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if endpoint.tls is not None:
                plain = self._socket
                try:
                    self._socket = endpoint.tls.wrap_socket(plain, server_hostname=address.host)
                except BaseException:
                    plain.close()
                    raise
        except ssl.SSLCertVerificationError as err:
            raise BrokerUnreachableError(
                str(address),
                f"its certificate is not accepted: {err.verify_message.rstrip('.')}. tls_ca names "
                "a file with the authority, and with tls_any_host any host may have it",
            ) from err
        except (OSError, ValueError) as err:  # ssl says ValueError of a host that cannot be one
            raise self._failure("no connection", err) from err

    def _failure(self, what: str, err: Exception) -> BrokerUnreachableError:
        """Return the error that says what failed, and why, or that it took too long."""
        late = f"timed out after {self.endpoint.timeout:.3g} s"
        why = late if isinstance(err, TimeoutError) else err
        return BrokerUnreachableError(str(self.endpoint.address), f"{what}: {why}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self._socket.close()

    @property
    def round_trip(self) -> float:
        """Seconds of the quickest way there and back so far, without the time of any answer.

        It is what the system measures by acknowledgements; 0 if it does not say.
        """
        return platforms.least_round_trip(self._socket)

    def request(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = _NO_OFFSET
    ) -> Answer:
        """Send a request and return its answer, whatever its code is.

        Raises:
            BrokerUnreachableError: no answer came in time, or what came is not an answer.
        """
        return self.receive_one_of({self.send(code, fields or {}, body)})

    def request_all(
        self, code: int, asked: Sequence[Mapping[str, str]], at_once: int
    ) -> list[Answer]:
        """Return the answers to requests of one kind, in their order, whatever their codes are.

        Args:
            code: of the requests.
            asked: the fields of each.
            at_once: how many requests may be on their way.

        Raises:
            BrokerUnreachableError: as :meth:`request` does.
        """
        answers: dict[int, Answer] = {}
        waiting: dict[int, int] = {}
        n_sent = 0
        while len(answers) < len(asked):
            if n_sent < len(asked) and len(waiting) <= at_once // 2:
                more = asked[n_sent : n_sent + at_once - len(waiting)]
                sent = self.send_all(code, [(fields, _NO_OFFSET) for fields in more])
                waiting |= zip(sent, range(n_sent, n_sent + len(more)), strict=True)
                n_sent += len(more)
            answer = self.receive_one_of(waiting)
            answers[waiting.pop(answer.opaque)] = answer
        return [answers[number] for number in range(len(asked))]

    def send(self, code: int, fields: Mapping[str, str], body: bytes) -> int:
        """Send a request and return its number; see :meth:`send_all`."""
        return self.send_all(code, [(fields, body)])[0]

    def send_all(self, code: int, requests: Iterable[tuple[Mapping[str, str], bytes]]) -> list[int]:
        """Send requests of one kind together, and return their numbers, which their answers have.

        Answers come in any order, so several requests may be on their way at once.

        Args:
            code: of the requests.
            requests: the fields and the body of each.

        Raises:
            BrokerUnreachableError: the connection is broken, or takes nothing.
        """
        endpoint = self.endpoint
        self._asked = RequestCode(code).name
        frames = []
        for fields, body in requests:
            self._opaque += 1
            given = fields
            if endpoint.credentials is not None:
                given = endpoint.credentials.signed(fields, body)
            frames.append(encode_request(code, self._opaque, given, body))
        try:
            self._socket.settimeout(endpoint.timeout)
            self._socket.sendall(b"".join(frames))
        except OSError as err:
            raise self._failure(f"{self._asked} could not be sent", err) from err
        return list(range(self._opaque - len(frames) + 1, self._opaque + 1))

    def receive_one_of(self, opaques: Container[int]) -> Answer:
        """Return the next answer to one of some requests; other answers are passed over.

        Raises:
            BrokerUnreachableError: none came in time, or what came is not an answer.
        """
        until = time.monotonic() + self.endpoint.timeout
        try:
            while True:
                length = frame_length(self._receive(LENGTH_BYTES, until))
                frame = self._receive(LENGTH_BYTES + length, until)
                self._start += len(frame)
                answer = decode_answer(frame[LENGTH_BYTES:])
                if answer is not None and answer.opaque in opaques:
                    return answer
        except (OSError, MalformedBytesError) as err:
            raise self._failure(f"no answer to {self._asked}", err) from err

    def _receive(self, count: int, until: float) -> memoryview:
        """Return the next bytes, which stay in the buffer, until more are received.

        Memory is taken as they come, whatever their number is.
        """
        while self._stop - self._start < count:
            if self._stop == len(self._buffer) or self._start == self._stop:
                # The unread bytes move to the front, in a buffer with room for twice as many, but
                # not for more than those that are waited for.
                rest = memoryview(self._buffer)[self._start : self._stop]
                size = max(_BUFFER_BYTES, min(2 * len(rest), count))
                if size != len(self._buffer):
                    self._buffer = bytearray(size)
                memoryview(self._buffer)[: len(rest)] = rest
                self._start, self._stop = 0, len(rest)
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left)
            n_come = self._socket.recv_into(memoryview(self._buffer)[self._stop :])
            if not n_come:
                raise ConnectionError("the broker closed the connection")
            self._stop += n_come
        return memoryview(self._buffer)[self._start : self._start + count]
