"""A master that serves the log of a closed store to followers, as fast as the socket takes it.

It speaks as much of the two ports of a broker as a follower needs. It sends the pieces of a real
one, 32 KiB each, many of them by one system call, so that it takes little of the time that a
benchmark measures.

Usage: python benchmarks/log_master.py STORE
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PIECE_BYTES = 32 << 10
_PIECES_AT_ONCE = 64
_HEARTBEAT_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_MESSAGE_MAGIC = 0xDAA320A7
_TABLES = {
    43: b'{"offsetTable":{}}',
    45: b'{"offsetTable":{}}',
    201: b'{"subscriptionGroupTable":{}}',
}


def log_end(path: Path) -> int:
    """Return the bytes of a file of the log up to the last one that is not zero."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        end = len(data)
        while end and not data[max(end - 4096, 0) : end].strip(b"\0"):
            end = max(end - 4096, 0)
        return end and end - 4096 + len(data[end - 4096 : end].rstrip(b"\0"))


class LogMaster:
    """Serves the log of a store from two ports.

    Args:
        root: the store. Its last record must not end with a zero.
        rate: if given, the log grows by as many messages a second from the first connection on,
            and is looked at every 100 ms, as an ASYNC_MASTER does.
    """

    def __init__(self, root: Path, rate: float | None = None) -> None:
        self._paths = {int(path.name): path for path in sorted((root / "commitlog").iterdir())}
        last = max(self._paths)
        self._file_size = self._paths[last].stat().st_size
        self._end = last + log_end(self._paths[last])
        self._rate = rate
        self._ends = [] if rate is None else self._record_ends()
        self._began: float | None = None
        self._topics = (root / "config" / "topics.json").read_bytes()
        self._replicas = socket.create_server(("127.0.0.1", 0))
        self._ordinary = socket.create_server(("127.0.0.1", 0))

    @property
    def address(self) -> str:
        """Return the address of the ordinary port."""
        return f"127.0.0.1:{self._ordinary.getsockname()[1]}"

    @property
    def end(self) -> int:
        """Return where the log ends by now."""
        if self._rate is None:
            return self._end
        if self._began is None:
            return 0
        count = int((time.monotonic() - self._began) * self._rate)
        return self._ends[min(count, len(self._ends) - 1)]

    def stored_at(self) -> list[tuple[int, float]]:
        """Return where each message ends, and the monotonic time at which the log had it."""
        assert self._began is not None
        assert self._rate is not None
        return [(end, self._began + row / self._rate) for row, end in enumerate(self._ends)]

    def _record_ends(self) -> list[int]:
        """Return where the records of the first file end, from the start of the log on."""
        ends = [0]
        with self._paths[0].open("rb") as file, mmap.mmap(file.fileno(), 0, prot=1) as data:
            while ends[-1] < min(self._end, len(data) - 8):
                size, magic = struct.unpack_from(">iI", data, ends[-1])
                if magic != _MESSAGE_MAGIC:
                    break
                ends.append(ends[-1] + size)
        return ends

    def run(self) -> None:
        """Serve until the process ends."""
        self.start()
        sys.stdin.read()

    def start(self) -> None:
        """Serve in threads."""
        for listener, serve in ((self._replicas, self._send_log), (self._ordinary, self._answer)):
            threading.Thread(target=self._accept, args=(listener, serve), daemon=True).start()

    def _accept(self, listener: socket.socket, serve: object) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_until_closed, args=(serve, connection), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        while True:
            frame = _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])
            request = json.loads(frame[4 : 4 + struct.unpack_from(">i", frame)[0]])
            code, body = self._answer_to(request["code"])
            header = json.dumps({"code": code, "flag": 1, "opaque": request["opaque"]}).encode()
            lengths = struct.pack(">ii", 4 + len(header) + len(body), len(header))
            connection.sendall(lengths + header + body)

    def _answer_to(self, code: int) -> tuple[int, bytes]:
        if code == 26:  # GET_BROKER_CONFIG
            port = self._replicas.getsockname()[1]
            settings = {
                "brokerClusterName": "DefaultCluster",
                "brokerName": "bench",
                "brokerId": 0,
                "brokerRole": "ASYNC_MASTER",
                "haListenPort": port,
                "mappedFileSizeCommitLog": self._file_size,
            }
            return 0, "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        if code == 28:  # GET_BROKER_RUNTIME_INFO
            table = {
                "commitLogMinOffset": str(min(self._paths)),
                "commitLogMaxOffset": str(self.end),
                "brokerVersionDesc": "V5_3_3",
            }
            return 0, json.dumps({"table": table}).encode()
        if code == 21:  # GET_ALL_TOPIC_CONFIG
            return 0, self._topics
        return (0, _TABLES[code]) if code in _TABLES else (3, b"")

    def _send_log(self, connection: socket.socket) -> None:
        """Send the log from the first offset that is asked for; reports are read, not used."""
        place = struct.unpack(">q", _exactly(connection, 8))[0]
        threading.Thread(target=_until_closed, args=(_discard, connection), daemon=True).start()
        self._began = self._began or time.monotonic()
        heartbeat_at = time.monotonic()
        while True:
            while place < self.end:
                start = place - place % self._file_size
                with self._paths[start].open("rb") as file:
                    place = self._send_file(connection, start, place, file.fileno())
            if time.monotonic() >= heartbeat_at:
                connection.sendall(struct.pack(">qi", place, 0))
                heartbeat_at = time.monotonic() + _HEARTBEAT_SECONDS
            time.sleep(_LOOK_SECONDS)

    def _send_file(self, connection: socket.socket, start: int, place: int, number: int) -> int:
        stop = min(start + self._file_size, self.end)
        portion = PIECE_BYTES * _PIECES_AT_ONCE
        while place < stop:
            data = memoryview(os.pread(number, min(portion, stop - place), place - start))
            parts: list[bytes | memoryview] = []
            for first in range(0, len(data), PIECE_BYTES):
                piece = data[first : first + PIECE_BYTES]
                parts += [struct.pack(">qi", place + first, len(piece)), piece]
            _send_parts(connection, parts)
            place += len(data)
        return place


def _send_parts(connection: socket.socket, parts: list[bytes | memoryview]) -> None:
    while parts:
        sent = connection.sendmsg(parts)
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if parts:
            parts[0] = memoryview(parts[0])[sent:]


def _until_closed(serve: object, connection: socket.socket) -> None:
    with suppress(OSError), connection:
        serve(connection)  # type: ignore[operator]


def _discard(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            raise OSError("closed")
        received += piece
    return received


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """Serve a store by a process of its own; yields the address of its ordinary port."""
    command = [sys.executable, str(Path(__file__)), str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


def main() -> None:
    """Serve a store until standard input is closed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    master = LogMaster(parser.parse_args().store)
    print(master.address, flush=True)
    master.run()


if __name__ == "__main__":
    main()
