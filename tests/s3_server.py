"""An S3 server on this machine, which keeps its objects in memory."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs

from ports import free_ports

BUCKET = "stores"
KEYS = {"access_key": "the-access-key", "secret_key": "the-secret-key"}
_START_SECONDS = 60


class S3Server:
    def __init__(self, port: int) -> None:
        self.options = {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1", **KEYS}
        self.filesystem = pafs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}",
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
            allow_delayed_open=True,  # one request for a small file instead of three
            **KEYS,
        )
        self.filesystem.create_dir(BUCKET)
        self._uploaded: set[str] = set()

    def upload(self, folder: Path, name: str | None = None) -> str:
        key = f"{BUCKET}/{name or folder.name}"
        if key not in self._uploaded:
            self._uploaded.add(key)
            self.filesystem.create_dir(key)
            for path in sorted(folder.rglob("*")):
                place = f"{key}/{path.relative_to(folder)}"
                if path.is_dir():
                    self.filesystem.create_dir(place)
                else:
                    self.put(place, path.read_bytes())
        return f"s3://{key}"

    def put(self, key: str, content: bytes) -> None:
        with self.filesystem.open_output_stream(key) as stream:
            stream.write(content)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(port)
            yield S3Server(port)
        finally:
            process.terminate()


def _wait(port: int) -> None:
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < until, "the S3 server does not start"
            time.sleep(0.1)
        else:
            return
