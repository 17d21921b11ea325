"""Masters in threads, over a log built by hand, also in controller mode; and a name server."""

from __future__ import annotations

import copy
import json
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from fake_server import FakeServer, Listener, Reply, Request
from rmqstore.storage.broker.epochs import Epoch
from store_builder import Record, Store, properties

FILE_BYTES = 1 << 14
TOPICS = {
    "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
    "topicConfigTable": {
        "T": {
            "topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "order": False,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "attributes": {},
        }
    },
}  # fmt: skip
# The same with a topic B, which has BatchConsumeQueues.
BATCH_TOPIC = json.dumps(
    {
        "topicConfigTable": {
            **TOPICS["topicConfigTable"],
            "B": {"topicName": "B", "attributes": {"queue.type": "BatchCQ"}},
        }
    }
).encode()
SETTINGS = {
    "brokerClusterName": "C", "brokerName": "b", "brokerId": "0", "brokerRole": "ASYNC_MASTER",
    "mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "100", "maxIndexNum": "400",
    "enableControllerMode": "false", "haSendHeartbeatInterval": "50",
    "haHousekeepingInterval": "20000",
}  # fmt: skip


def more(log: Store, count: int, *, size: int = 100, mark: bytes = b"", time_ms: int = 0) -> None:
    for number in range(count):
        body = mark + bytes([number % 251]) * size
        stored_at = 1_700_000_000_000 + (time_ms or len(log.placed))
        keys = properties({"KEYS": f"k{len(log.placed)}"})
        log.append(
            Record(queue_id=number % 3, body=body, properties=keys, store_timestamp=stored_at)
        )


def log_of(count: int, *, size: int = 100, time_ms: int = 0) -> Store:
    log = Store(segment_bytes=FILE_BYTES)
    more(log, count, size=size, time_ms=time_ms)
    return log


def part(common: Store, n_lost: int, n_more: int) -> tuple[Store, Store]:
    """Return two logs that go on differently: one with an end that the other has lost."""
    longer, other = copy.deepcopy(common), copy.deepcopy(common)
    more(longer, n_lost)
    more(other, n_more, mark=b"other", time_ms=10_000)
    return longer, other


class FakeMaster(Listener):
    """Serves a log at its HA port and at its listen port; every attribute may be changed meanwhile.

    Attributes:
        log: the log.
        low: physical offset where it begins.
        address: of the listen port.
        reports: of each connection of a follower, the request and the reports after it.
        mangle: what becomes of a frame of the log before it is sent.
        is_slow: sends heartbeats only, wherever it is.
        hides_records: refuses to return single records.
        batch: bytes of the log in a frame.
        report_bytes: bytes of a report.
    """

    report_bytes = 8

    def __init__(self, log: Store, *, batch: int = 3000, name: str = "b") -> None:
        super().__init__()
        self.log, self.low, self.batch = log, 0, batch
        self.settings = {
            **SETTINGS, "brokerName": name, "mappedFileSizeCommitLog": str(log.segment_bytes),
            "haListenPort": self.address.rpartition(":")[2],
        }  # fmt: skip
        self.version = "V5_3_3"
        self.tables: dict[int, bytes] = {
            21: json.dumps(TOPICS).encode(), 43: b'{"offsetTable":{"T@G":{0:1,1:2}}}',
            45: b'{"offsetTable":{}}', 201: b'{"subscriptionGroupTable":{}}',
        }  # fmt: skip
        self.answer_code = 0
        self.is_slow = self.hides_records = False
        self.heartbeat = 0.05
        self.mangle: Callable[[bytes], bytes] = lambda frame: frame
        self.reports: list[list[int]] = []
        self.port = FakeServer()
        self.port.replace, self.port.mangle = self._answer, self._silenced
        self.address = self.port.address

    def close(self) -> None:
        self.port.close()
        super().close()

    def _answer(self, request: Request) -> Reply:
        self.port.version = 355 if self.version.startswith("V4") else 479
        code, body = self._answer_to(request.code, request.fields)
        return Reply(code, body=body, remark="why")

    def _silenced(self, _request: Request, frame: bytes) -> bytes:
        """Return no answer to a request that a broker of RocketMQ 4 does not know."""
        return b"" if self.port.version == 355 and b'"code": 3,' in frame else frame

    def _answer_to(self, code: int, fields: dict[str, str]) -> tuple[int, bytes]:
        if self.answer_code:
            return self.answer_code, b""
        if code == 26:
            return 0, "".join(f"{name}={value}\n" for name, value in self.settings.items()).encode()
        if code == 28:
            table = {
                "commitLogMinOffset": str(self.low),
                "commitLogMaxOffset": str(self.log.end),
                "brokerVersionDesc": self.version,
            }
            return 0, json.dumps({"table": table}).encode()
        if code == 33 and not self.hides_records:
            return self._record_at(int(fields["offset"]))
        return (0, self.tables[code]) if code in self.tables else (3, b"")

    def _record_at(self, physical_offset: int) -> tuple[int, bytes]:
        for placed in self.log.placed:
            if placed.physical_offset == physical_offset:
                start = physical_offset - physical_offset % self.log.segment_bytes
                position = physical_offset - start
                data = self.log.segments[start]
                size = struct.unpack_from(">i", data, position)[0]
                return 0, bytes(data[position : position + size])
        return 1, b""

    def serve(self, connection: socket.socket) -> None:
        """Send the log as a master does, from where the follower asks for it."""
        self._greet(connection)
        reports: list[int] = []
        self.reports.append(reports)
        connection.settimeout(0.005)
        place: int | None = None
        sent_at = time.monotonic()
        while True:
            with suppress(TimeoutError):
                received = connection.recv(self.report_bytes)
                if not received:
                    return
                reports.append(self._report(received))
                if place is None and (place := self._first_place(reports[0])) is not None:
                    sent_at = time.monotonic()
            if place is None:
                continue
            if place == -1 and self.log.end:
                place = self.low
            if place == 0 < self.low and not self.is_slow:
                body = self._body(self.low)  # as MappedFileQueue finds its first file
                connection.sendall(self.mangle(self.frame(place, body)))
                place += len(body)
            while not self.is_slow and self.low <= place < self.log.end:
                body = self._body(place)
                connection.sendall(self.mangle(self.frame(place, body)))
                place += len(body)
                sent_at = time.monotonic()
            if time.monotonic() - sent_at >= self.heartbeat:
                connection.sendall(self._heartbeat(place))
                sent_at = time.monotonic()

    def _greet(self, connection: socket.socket) -> None:
        """Answer what a follower says before its first report."""

    def _report(self, received: bytes) -> int:
        return int(struct.unpack(">q", received)[0])

    def _first_place(self, asked: int) -> int | None:
        """Return where to begin for the first report; -1 to wait for a log, None for nowhere."""
        if asked < 0:
            return None
        return asked or self.log.end - self.log.end % self.log.segment_bytes

    def frame(self, place: int, body: bytes) -> bytes:
        """Return a piece of the log with its header; without a body it is a heartbeat."""
        return struct.pack(">qi", place, len(body)) + body

    def _heartbeat(self, place: int) -> bytes:
        return self.frame(place, b"")

    def _body(self, place: int) -> bytes:
        start = place - place % self.log.segment_bytes
        position = place - start
        stop = min(position + self.batch, self.log.segment_bytes)
        if start + stop > self.log.end:
            stop = self.log.end - start
        return bytes(self.log.segments[start][position:stop])


def content(log: Store) -> dict[str, Any]:
    return {f"{start:020d}": bytes(data) for start, data in log.segments.items() if start < log.end}


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
        state, *flags, replica_id = struct.unpack(">ihhq", connection.recv(16, socket.MSG_WAITALL))
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


class FakeNameServer(FakeServer):
    """Answers from ``brokers``, which may be changed while it does.

    Attributes:
        brokers: by name: cluster, and addresses by broker id.
        code: of the answers.
    """

    def __init__(self, brokers: dict[str, tuple[str, dict[int, str]]] | None = None) -> None:
        self.brokers = brokers or {}
        self.code = 0
        super().__init__()

    def answer(self, request: Request) -> Reply:
        assert request.code == 106
        return Reply(self.code, body=b"" if self.code else self.body(), remark="why")

    def body(self) -> bytes:
        """Return the list as fastjson writes it, with keys that are not quoted."""
        entries = []
        clusters: dict[str, list[str]] = {}
        for name, (cluster, addresses) in self.brokers.items():
            listed = ",".join(f'{number}:"{address}"' for number, address in addresses.items())
            entries.append(
                f'"{name}":{{"brokerAddrs":{{{listed}}},"brokerName":"{name}",'
                f'"cluster":"{cluster}","enableActingMaster":false}}'
            )
            clusters.setdefault(cluster, []).append(name)
        table = f'{{"brokerAddrTable":{{{",".join(entries)}}},'
        return f'{table}"clusterAddrTable":{json.dumps(clusters)}}}'.encode()
