"""Objects that are read by presigned URLs: what is compared, repeated and left to pyarrow."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np
import pytest

from rmqstore.errors import FileDeletedError, FileReplacedError, RemoteReadError
from rmqstore.storage.remote import presigned, requests
from rmqstore.storage.remote.presigned import PresignedGets
from rmqstore.storage.remote.remote_file import RemoteFile
from rmqstore.storage.remote.remote_storage import RemoteStorage

MIB = 1 << 20
CONTENT = np.random.default_rng(1).bytes(3 * MIB)
# Given the number of a GET, the status and the number of bytes that it is answered with instead.
Fault = Callable[[int], tuple[int, int] | None]
SECRET = "signed-with-a-secret"


class Bucket:
    """One object behind HTTP, and a file system that reads it without."""

    type_name = "fake"

    def __init__(self) -> None:
        self.content: bytes | None = CONTENT
        self.gets: list[tuple[int, int]] = []  # by presigned URLs
        self.reads: list[tuple[int, int]] = []  # by the file system
        self.n_opened = self.n_connections = self.n_signed = 0
        self.fault: Fault = lambda _: None
        self.ends_connections = False
        self.etag_of_gets = ""
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                bucket.n_connections += 1

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                assert self.path == f"/b/a?{SECRET}"
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
                assert asked is not None
                low, high = int(asked[1]), int(asked[2]) + 1
                bucket.gets.append((low, high - low))
                status, n_bytes = bucket.fault(len(bucket.gets)) or (206, high - low)
                content = bucket.content or b""
                body = content[low : low + n_bytes]
                self.send_response(status if content else 404)
                self.send_header("Content-Length", str(high - low if status == 206 else len(body)))
                self.send_header("Content-Range", f"bytes {low}-{high - 1}/{len(content)}")
                self.send_header("ETag", bucket.etag_of_gets or bucket.etag)
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = bucket.ends_connections or len(body) < high - low

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Say nothing of clients that do not read an answer to its end."""

        self.server = Server(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    @property
    def etag(self) -> str:
        return f'"{hash(self.content)}"'

    def generate_presigned_url(self, method: str, parameters: dict[str, str], **_: int) -> str:
        assert (method, parameters) == ("get_object", {"Bucket": "b", "Key": "a"})
        self.n_signed += 1
        return f"http://127.0.0.1:{self.server.server_port}/b/a?{SECRET}"

    def open_input_file(self, key: str) -> Any:
        assert key == "b/a"
        if self.content is None:
            raise FileNotFoundError(key)
        self.n_opened += 1
        return self

    def size(self) -> int:
        return len(self.content or b"")

    def metadata(self) -> dict[str, bytes]:
        return {"ETag": self.etag.encode()}

    def read_at(self, n_bytes: int, start: int) -> bytes:
        self.reads.append((start, n_bytes))
        assert self.content is not None
        return self.content[start : start + n_bytes]

    def close(self) -> None:
        pass

    def get_file_info(self, _: object) -> list[Any]:
        kind = type("Type", (), {"name": "File"})
        return [type("Info", (), {"path": "b/a", "base_name": "a", "size": 3 * MIB, "type": kind})]

    def open(self, gets: PresignedGets | None = None) -> RemoteFile:
        gets = gets or PresignedGets(lambda: self, 5)
        return RemoteStorage(self, "s3://b", "b", [], gets).open("s3://b/a")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setattr(requests, "sleep", lambda _: None)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Bucket()
    yield made
    made.server.shutdown()
    made.server.server_close()


def answers(*statuses: int, n_bytes: int = 0) -> Fault:
    return lambda number: (statuses[number - 1], n_bytes) if number <= len(statuses) else None


def test_all_bytes_come_by_one_url_and_are_compared_without_another_request(
    bucket: Bucket,
) -> None:
    with bucket.open() as file:
        file.read_ahead(np.array([0]), np.array([3 * MIB]))
        window = np.empty(3 * MIB, np.uint8)
        assert file.read_into(window, 0) == 3 * MIB
        assert file.read(MIB, 10).tobytes() == CONTENT[MIB : MIB + 10]
    assert window.tobytes() == CONTENT
    assert (bucket.n_signed, bucket.n_opened, bucket.reads) == (1, 1, [])
    assert bucket.n_connections <= len(bucket.gets) == 2


def test_connections_are_used_again_also_for_other_files(bucket: Bucket) -> None:
    gets = PresignedGets(lambda: bucket, 5)
    for _ in range(3):
        with bucket.open(gets) as file:
            assert file.read(5, 5).tobytes() == CONTENT[5:10]
    assert (len(bucket.gets), bucket.n_connections) == (3, 1)


def test_a_connection_that_the_server_has_ended_is_no_failure(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bucket.ends_connections = True  # without saying so
    with bucket.open() as file:
        for start in (0, MIB, 2 * MIB):
            assert file.read(start, 9).tobytes() == CONTENT[start : start + 9]
    assert "trying again" not in caplog.text
    assert bucket.reads == []


@pytest.mark.parametrize("status", [503, 500, 429, 408])
def test_a_failure_of_the_server_is_tried_again(bucket: Bucket, status: int) -> None:
    bucket.fault = answers(status, status)
    with bucket.open() as file:
        assert file.read(7, 5).tobytes() == CONTENT[7:12]
    assert len(bucket.gets) == 3
    assert bucket.reads == []


def test_an_answer_that_is_cut_is_asked_for_again(bucket: Bucket) -> None:
    bucket.fault = answers(206, n_bytes=50)
    with bucket.open() as file:
        assert file.read(7, 5).tobytes() == CONTENT[7:12]
    assert len(bucket.gets) == 2


def test_the_last_error_names_file_and_range_and_not_the_url(bucket: Bucket) -> None:
    bucket.fault = answers(*[503] * 9)
    with bucket.open() as file, pytest.raises(RemoteReadError) as error:
        file.read(7, 5)
    assert str(error.value) == (
        "bytes 0 to 32768 (excluded) of s3://b/a cannot be read after 5 attempts: HTTP status 503"
    )


@pytest.mark.parametrize("status", [403, 401, 400, 200, 301, 307])
def test_what_is_refused_is_left_to_pyarrow(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.INFO)
    bucket.fault = answers(*[status] * 9)
    with bucket.open() as file:
        assert file.read(7, 5).tobytes() == CONTENT[7:12]
        assert file.read(MIB, 5).tobytes() == CONTENT[MIB : MIB + 5]
    assert len(bucket.gets) == 1
    assert len(bucket.reads) == 2
    assert bucket.n_opened == 2  # compared after the second read
    assert caplog.text.count("presigned URLs are not used") == 1
    assert SECRET not in caplog.text


def test_what_cannot_be_signed_is_left_to_pyarrow(bucket: Bucket) -> None:
    class UnauthorizedError(Exception):  # a name that stands for what is final elsewhere
        pass

    def refuse() -> Any:
        raise UnauthorizedError(SECRET)

    with bucket.open(PresignedGets(refuse, 5)) as file:
        assert file.read(7, 5).tobytes() == CONTENT[7:12]
    assert bucket.gets == []


def test_a_proxy_is_left_to_pyarrow(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presigned, "getproxies", lambda: {"http": "http://127.0.0.1:1"})
    monkeypatch.setattr(presigned, "proxy_bypass", lambda _: False)
    with bucket.open() as file:
        assert file.read(7, 5).tobytes() == CONTENT[7:12]
    assert bucket.gets == []


def test_an_object_that_was_replaced_before_its_first_byte_is_refused(bucket: Bucket) -> None:
    with bucket.open() as file:
        bucket.content = bytes(3 * MIB)
        with pytest.raises(FileReplacedError):
            file.read(0, 10)


def test_an_object_that_is_replaced_by_a_shorter_one_or_deleted_is_refused(bucket: Bucket) -> None:
    with bucket.open() as file:
        file.read(0, 10)
        bucket.content = bytes(100)
        with pytest.raises(FileReplacedError):
            file.read(MIB, 10)
    bucket.content = CONTENT
    with bucket.open() as file:
        bucket.content = None
        with pytest.raises(FileDeletedError):
            file.read(MIB, 10)


def test_urls_are_signed_anew_before_they_expire(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(presigned, "monotonic", lambda: now[0])
    with bucket.open() as file:
        for moment, n_signed in ((0.0, 1), (599.0, 1), (601.0, 2)):
            now[0] = moment
            start = int(moment) * 4096
            assert file.read(start, 9).tobytes() == CONTENT[start : start + 9]
            assert bucket.n_signed == n_signed


def test_a_server_whose_answers_have_other_marks_is_left_to_pyarrow(bucket: Bucket) -> None:
    bucket.etag_of_gets = "W/other"
    with bucket.open() as file:
        assert file.read(7, 5).tobytes() == CONTENT[7:12]
        assert file.read(MIB, 5).tobytes() == CONTENT[MIB : MIB + 5]
    assert (len(bucket.gets), len(bucket.reads)) == (1, 2)


def test_certificates_that_cannot_be_read_are_no_data_loss(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere")
    made = bucket.generate_presigned_url
    monkeypatch.setattr(
        bucket,
        "generate_presigned_url",
        lambda *given, **more: made(*given, **more).replace("http:", "https:"),
    )
    with bucket.open() as file:
        assert file.read(7, 5).tobytes() == CONTENT[7:12]
    assert bucket.gets == []


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_connection_is_not_waited_for_in_vain(bucket: Bucket, seconds: float) -> None:
    with bucket.open(PresignedGets(lambda: bucket, seconds)) as file:
        assert file.read(7, 5).tobytes() == CONTENT[7:12]
    assert len(bucket.gets) == 1
