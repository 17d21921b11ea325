"""A master in controller mode, in a thread, over a log built by hand."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from following.fake_master import FakeMaster, exactly
from rmqstore.storage.broker.epochs import Epoch
from store_builder import Store


class Handshake(NamedTuple):
    from_last_file: int
    is_learner: int
    replica_id: int


class FakeController(FakeMaster):
    """Serves a log as AutoSwitchHAConnection does; every attribute may be changed while it does.

    Attributes:
        epochs: the epochs of the log; a piece that ends where one starts is announced as its own.
        confirm_offset: what headers tell of it; None for the end of the log.
        handshakes: those of the followers so far.
        mangle_handshake: what becomes of the answer to a handshake before it is sent.
        on_handshake: called before it is sent.
    """

    report_bytes = 12

    def __init__(
        self, log: Store, epochs: list[Epoch], *, batch: int = 3000, name: str = "b"
    ) -> None:
        self.epochs = epochs
        self.confirm_offset: int | None = None
        self.handshakes: list[Handshake] = []
        self.mangle_handshake: Callable[[bytes], bytes] = lambda handshake: handshake
        self.on_handshake: Callable[[], None] = lambda: None
        super().__init__(log, batch=batch, name=name)
        self.settings |= {"enableControllerMode": "true", "brokerRole": "SYNC_MASTER"}

    def handshake(self) -> bytes:
        listed = b"".join(struct.pack(">iq", *epoch) for epoch in self.epochs)
        last = self.epochs[-1].number if self.epochs else -1
        return struct.pack(">iiqi", 1, len(listed), self.log.end, last) + listed

    def frame(self, place: int, body: bytes) -> bytes:
        """Return a piece of the log with its header; without a body it is a heartbeat."""
        end = max(place + len(body), 0)
        epoch = [each for each in self.epochs if each.start_offset <= end][-1]
        confirm_offset = self.log.end if self.confirm_offset is None else self.confirm_offset
        return struct.pack(">iiqiqq", 2, len(body), place, *epoch, confirm_offset) + body

    def _greet(self, connection: socket.socket) -> None:
        state, *flags, replica_id = struct.unpack(">ihhq", exactly(connection, 16))
        assert state == 1
        self.handshakes.append(Handshake(*flags, replica_id))
        handshake = self.mangle_handshake(self.handshake())
        self.on_handshake()
        connection.sendall(handshake)

    def _report(self, received: bytes) -> int:
        state, offset = struct.unpack(">iq", received)
        assert state == 2
        return int(offset)

    def _first_place(self, asked: int) -> int:
        return asked or (self.low if self.log.end else -1)

    def _heartbeat(self, place: int) -> bytes:
        return self.mangle(self.frame(place, b""))

    def _body(self, place: int) -> bytes:
        body = super()._body(place)
        starts = [each.start_offset for each in self.epochs if each.start_offset > place]
        return body[: min(starts, default=place + len(body)) - place]
