"""Servers in threads: of the remoting protocol, and of whatever else a connection says."""

from __future__ import annotations

import json
import random
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Request:
    code: int
    opaque: int
    fields: dict[str, str]
    body: bytes

    @property
    def key(self) -> tuple[str, int]:
        names = ("b", "e") if "e" in self.fields else ("topic", "queueId")
        return self.fields[names[0]], int(self.fields[names[1]])


@dataclass
class Reply:
    code: int = 0
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str = ""


class HangUpError(Exception):
    """The server sends these bytes and closes the connection."""

    def __init__(self, last: bytes = b"") -> None:
        super().__init__(last)
        self.last = last


class Listener:
    """Serves each connection in a thread of its own; a context manager.

    Attributes:
        address: where it listens.
        connections: of all clients so far.
        tls: settings of TLS; None for plain text.
    """

    tls: ssl.SSLContext | None = None

    def __init__(self) -> None:
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self.cut_connections()

    def cut_connections(self) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def serve(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with suppress(OSError, struct.error):
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with connection:
                self.serve(connection)


class FakeServer(Listener):
    """Answers requests; every attribute may be changed while it does.

    Attributes:
        requests: all that came.
        is_binary: whether headers of answers are of type ROCKETMQ.
        version: of RocketMQ, as headers of answers say it.
        dice: brings answers that are due together into another order, if given.
        waits: seconds that requests are waited for which come together.
        replace: gives another answer to a request, None for the ordinary one.
        mangle: what becomes of the frame of an answer: bytes, or slices of them.
    """

    version = 479

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.is_binary, self.waits = False, 0.0
        self.dice: random.Random | None = None
        self.replace: Callable[[Request], Reply | None] = lambda _request: None
        self.mangle: Callable[[Request, bytes], bytes | Iterable[bytes]] = lambda _request, frame: (
            frame
        )
        super().__init__()

    def asked(self, code: int) -> list[Request]:
        return [request for request in self.requests if request.code == code]

    def answer(self, request: Request) -> Reply:
        raise NotImplementedError

    def come(self, requests: list[Request]) -> None:
        """Take note of requests that came together, before any of them is answered."""

    def serve(self, connection: socket.socket) -> None:
        try:
            self._answer_all(connection)
        except HangUpError as err:
            connection.sendall(err.last)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):  # a reset would take away what was sent
                pass

    def _answer_all(self, connection: socket.socket) -> None:
        received = bytearray()
        while True:
            piece = connection.recv(1 << 20)
            while piece and select.select([connection], [], [], self.waits)[0]:
                received += piece
                piece = connection.recv(1 << 20)
            received += piece
            due = list(_requests(received))
            self.come(due)
            if self.dice is not None:
                self.dice.shuffle(due)
            for request in due:
                self.requests.append(request)
                reply = self.replace(request) or self.answer(request)
                mangled = self.mangle(request, self.frame(request, reply))
                for sent in [mangled] if isinstance(mangled, bytes) else mangled:
                    connection.sendall(sent)
            if not piece:
                return

    def frame(self, request: Request, reply: Reply) -> bytes:
        header = (_binary if self.is_binary else _json)(request.opaque, self.version, reply)
        marked = int(self.is_binary) << 24 | len(header)
        return struct.pack(">ii", 4 + len(header) + len(reply.body), marked) + header + reply.body


def on(code: int, reply: Reply, times: int = 1 << 31) -> Callable[[Request], Reply | None]:
    """Return what replaces the first answers to requests of one kind."""

    def replaced(request: Request) -> Reply | None:
        nonlocal times
        if request.code != code or times <= 0:
            return None
        times -= 1
        return reply

    return replaced


def _requests(received: bytearray) -> Iterator[Request]:
    """Take the whole requests from what was received."""
    while len(received) >= 4:
        (length,) = struct.unpack_from(">i", received)
        if len(received) < 4 + length:
            return
        (size,) = struct.unpack_from(">i", received, 4)
        header = json.loads(received[8 : 8 + size])
        body = bytes(received[8 + size : 4 + length])
        del received[: 4 + length]
        yield Request(header["code"], header["opaque"], header["extFields"], body)


def _json(opaque: int, version: int, reply: Reply) -> bytes:
    header: dict[str, Any] = {
        "code": reply.code, "flag": 1, "opaque": opaque, "language": "JAVA", "version": version
    }  # fmt: skip
    if reply.fields:
        header["extFields"] = reply.fields
    if reply.remark:
        header["remark"] = reply.remark
    return json.dumps(header).encode()


def _binary(opaque: int, version: int, reply: Reply) -> bytes:
    remark = reply.remark.encode()
    fields = b"".join(
        struct.pack(">h", len(name.encode())) + name.encode()
        + struct.pack(">i", len(value.encode())) + value.encode()
        for name, value in reply.fields.items()
    )  # fmt: skip
    head = struct.pack(">hbhiii", reply.code, 0, version, opaque, 1, len(remark))
    return head + remark + struct.pack(">i", len(fields)) + fields
