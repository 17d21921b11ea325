"""A server that speaks as much of S3's protocol as reading needs, with a delay before each answer.

It serves the files below a folder: bucket ``stores``, keys that are paths. It sends bytes of files
without copying them, so that it takes little of the time that a benchmark measures.

Usage: python benchmarks/object_server.py FOLDER [--delay SECONDS] [--port N]
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "stores"
_KEYS_A_PAGE = 1000
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Handler(BaseHTTPRequestHandler):
    """Answers HEAD and GET of objects, and listings."""

    protocol_version = "HTTP/1.1"
    root: Path
    delay: float

    def log_message(self, *_args: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Answer with the size and the ETag of an object."""
        time.sleep(self.delay)
        self._object(with_body=False)

    def do_GET(self) -> None:
        """Answer with bytes of an object, or with a listing."""
        time.sleep(self.delay)
        parts = urlsplit(self.path)
        if parts.path.strip("/") == BUCKET:
            self._listing(parse_qs(parts.query, keep_blank_values=True))
        else:
            self._object(with_body=True)

    def _file(self) -> Path | None:
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        path = self.root / key
        return path if bucket == BUCKET and key and path.is_file() else None

    def _object(self, *, with_body: bool) -> None:
        path = self._file()
        if path is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>" if with_body else b"")
            return
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
            start = int(wanted[1]) if wanted else 0
            end = (
                min(int(wanted[2]) + 1, status.st_size) if wanted and wanted[2] else status.st_size
            )
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(end - start))
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{status.st_size}")
            self.send_header("ETag", f'"{status.st_size:x}-{status.st_mtime_ns:x}"')
            self.send_header("Last-Modified", formatdate(status.st_mtime, usegmt=True))
            self.end_headers()
            if with_body:
                self.wfile.flush()
                while start < end:
                    start += os.sendfile(
                        self.connection.fileno(), file.fileno(), start, min(end - start, 1 << 20)
                    )

    def _listing(self, asked: dict[str, list[str]]) -> None:
        prefix = asked.get("prefix", [""])[0]
        after = asked.get("continuation-token", [""])[0]
        keys, folders = [], []
        for key, is_folder in self._names(prefix, deep="delimiter" not in asked):
            (folders if is_folder else keys).append(key)
        left = sorted(key for key in keys if key > after)
        page = left[:_KEYS_A_PAGE]
        text = ['<?xml version="1.0"?><ListBucketResult>', f"<Prefix>{escape(prefix)}</Prefix>"]
        for key in page:
            status = (self.root / key).stat()
            moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))
            text.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{status.st_size}</Size>"
                f"<LastModified>{moment}</LastModified></Contents>"
            )
        text += [
            f"<CommonPrefixes><Prefix>{escape(folder)}/</Prefix></CommonPrefixes>"
            for folder in ([] if after else folders)
        ]
        is_cut = len(left) > len(page)
        text.append(f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>")
        if is_cut:
            text.append(f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>")
        text.append(f"<KeyCount>{len(page)}</KeyCount></ListBucketResult>")
        self._answer(200, "".join(text).encode(), "application/xml")

    def _names(self, prefix: str, *, deep: bool) -> Iterator[tuple[str, bool]]:
        """Yield keys below a prefix that ends with a slash, and whether they are of folders."""
        folder = self.root / prefix
        if not folder.is_dir():
            return
        for entry in os.scandir(folder):
            if entry.is_dir() and deep:
                yield from self._names(f"{prefix}{entry.name}/", deep=True)
            else:
                yield prefix + entry.name, entry.is_dir()

    def _answer(self, code: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """A thread for each connection; answers are not delayed to be joined."""

    daemon_threads = True
    request_queue_size = 128

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """Begin to serve a connection."""
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().process_request(request, client_address)


@contextmanager
def served(folder: Path, delay: float) -> Iterator[dict[str, str]]:
    """Serve a folder in a process of its own; yield the ``storage_options`` to reach it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, __file__, str(folder), "--delay", str(delay), "--port", str(port)]
    with subprocess.Popen(command) as process:
        try:
            _wait(port)
            yield {
                "endpoint": f"http://127.0.0.1:{port}",
                "region": "us-east-1",
                "access_key": "any",
                "secret_key": "any",
            }
        finally:
            process.terminate()


def _wait(port: int, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def main() -> None:
    """Serve a folder until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--port", type=int, default=7070)
    arguments = parser.parse_args()
    Handler.root, Handler.delay = arguments.folder.resolve(), arguments.delay
    Server(("127.0.0.1", arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
