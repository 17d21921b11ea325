"""Files behind requests: what is fetched, repeated and refused."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from itertools import count
from threading import Event
from time import sleep
from typing import Any

import numpy as np
import pytest
from pyarrow import ArrowException

from rmqstore.errors import FileDeletedError, FileReplacedError, RemoteReadError
from rmqstore.storage.files import remote_requests
from rmqstore.storage.files.remote_object import (
    BLOCK_BYTES,
    MAX_REQUEST_BYTES,
    BlockCache,
    blocks_of,
    requests_for,
)
from rmqstore.storage.files.remote_requests import RemoteRequests
from rmqstore.storage.files.remote_storage import RemoteStorage

Fault = Callable[[int], bytes | None]
MIB = 1 << 20


class _Info:
    def __init__(self, path: str, size: int, mtime_ns: int) -> None:
        self.path, self.size, self.mtime_ns = path, size, mtime_ns
        self.base_name = path.rpartition("/")[2]
        self.type = type("Type", (), {"name": "File"})


class _File(io.BytesIO):
    def __init__(self, server: Server, key: str) -> None:
        super().__init__()
        self._server, self._key = server, key

    def size(self) -> int:
        return len(self._server.files[self._key])

    def metadata(self) -> dict[str, bytes]:
        return {"ETag": str(hash(self._server.files[self._key])).encode()}

    def read_at(self, n_bytes: int, start: int) -> bytes:
        self._server.reads.append((start, n_bytes))
        data = self._server.fault(len(self._server.reads))
        return self._server.files[self._key][start : start + n_bytes] if data is None else data


class Server:
    """A file system of one folder; ``fault`` is called with the number of each read."""

    type_name = "fake"

    def __init__(self, **files: bytes) -> None:
        self.files = {f"b/{name}": content for name, content in files.items()}
        self.reads: list[tuple[int, int]] = []
        self.fault: Fault = lambda _: None
        self.n_opened = 0

    def get_file_info(self, asked: Any) -> Any:
        infos = [_Info(key, len(content), 0) for key, content in self.files.items()]
        if isinstance(asked, str):
            return next(info for info in infos if info.path == asked)
        return infos

    def open_input_file(self, key: str) -> _File:
        if key not in self.files:
            raise FileNotFoundError(key)
        self.n_opened += 1
        return _File(self, key)

    @property
    def storage(self) -> RemoteStorage:
        return RemoteStorage(self, "fake://b", "b", ["hidden"])


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(remote_requests, "sleep", slept.append)
    return slept


def _fails(error: Exception, times: int) -> Fault:
    def fault(number: int) -> None:
        if number <= times:
            raise error

    return fault


def test_the_last_error_names_file_and_range_and_no_secret() -> None:
    server = Server(a=bytes(100))
    server.fault = _fails(OSError("stalled, with hidden"), 99)
    with server.storage.open("fake://b/a") as file, pytest.raises(RemoteReadError) as error:
        file.read(10, 5)
    assert str(error.value) == (
        "bytes 0 to 100 (excluded) of fake://b/a cannot be read after 5 attempts: stalled, with ***"
    )


@pytest.mark.parametrize(
    "error", [OSError("AWS Error ACCESS_DENIED"), ArrowException("no credentials")]
)
def test_what_is_not_allowed_is_not_tried_again(error: Exception) -> None:
    server = Server(a=bytes(100))
    server.fault = _fails(error, 99)
    with server.storage.open("fake://b/a") as file, pytest.raises(RemoteReadError):
        file.read(10, 5)
    assert len(server.reads) == 1


@pytest.mark.parametrize("name", ["a", "permission", "no_such_key", "forbidden/status 404"])
@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_request_that_fails_is_made_again_after_growing_pauses(
    pauses: list[float], name: str, quote: str
) -> None:
    """Words in the name of an object decide nothing."""
    server = Server(a=b"x" * 100)
    server.fault = _fails(OSError(f"SLOW_DOWN: reading key {quote}b/{name}{quote}: stalled"), 3)
    with server.storage.open("fake://b/a") as file:
        assert file.read(0, 100).tobytes() == b"x" * 100
    assert len(server.reads) == 4
    assert pauses[0] < pauses[2]


@pytest.mark.parametrize(("seconds", "n_warnings"), [(0, 0), (6, 3)])
def test_people_are_told_what_a_long_request_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seconds: int, n_warnings: int
) -> None:
    server, clock = Server(a=bytes(100)), count(0, seconds)
    monkeypatch.setattr(remote_requests, "monotonic", lambda: next(clock))
    server.fault = _fails(OSError("nobody answers"), 3)
    with server.storage.open("fake://b/a") as file:
        file.read(0, 100)
    assert [record.levelname for record in caplog.records].count("WARNING") == n_warnings


def test_an_answer_that_is_cut_is_asked_for_again() -> None:
    server = Server(a=b"x" * 100)
    server.fault = lambda number: b"x" * 50 if number == 1 else None
    with server.storage.open("fake://b/a") as file:
        assert file.read(0, 100).tobytes() == b"x" * 100


@pytest.mark.parametrize("is_deleted", [True, False])
def test_bytes_of_two_versions_never_come_together(is_deleted: bool) -> None:
    server = Server(a=b"1" * 3 * MIB)
    with server.storage.open("fake://b/a") as file:
        before = file.read(0, 10).tobytes()
        if is_deleted:
            del server.files["b/a"]
            server.fault = _fails(OSError("no such key"), 99)
        else:
            server.files["b/a"] = b"2" * 3 * MIB
        error = FileDeletedError if is_deleted else FileReplacedError
        with pytest.raises(error, match="fake://b/a"):
            file.read(2 * MIB, 10)
        assert file.is_outdated()
        assert file.read(0, 10).tobytes() == before, "these are held"


def test_only_fetched_bytes_are_seen() -> None:
    server = Server(a=b"x" * 2 * MIB)
    with server.storage.open("fake://b/a") as file:
        whole = file.read_in_place(np.array([10, MIB]), np.array([5, 5]))
    fetched = sorted((start, start + size) for start, size in server.reads)
    is_seen = whole != 0
    assert is_seen[:BLOCK_BYTES].all()
    assert is_seen[MIB : MIB + BLOCK_BYTES].all()
    assert int(is_seen.sum()) == sum(end - start for start, end in fetched) == 2 * BLOCK_BYTES


def test_announced_bytes_are_fetched_once() -> None:
    server = Server(a=random.Random(1).randbytes(MIB))
    with server.storage.open("fake://b/a") as file:
        file.prefetch(np.array([0, 400_000, 800_000]), 100)
        units = file.read_each(np.array([800_000, 0, 400_000]), 100)
        assert units[1].tobytes() == server.files["b/a"][:100]
        assert units[0].tobytes() == server.files["b/a"][800_000:800_100]
    assert len(server.reads) == 3


def test_near_blocks_are_one_request_and_far_ones_several() -> None:
    blocks = blocks_of(np.array([0, 100_000, 5 * MIB, 7]), np.array([10, 100_010, 6 * MIB, 7]))
    ranges = requests_for(blocks, 6 * MIB - 1)
    assert ranges == [(0, 4 * BLOCK_BYTES), (5 * MIB, 6 * MIB - 1)]
    long = requests_for(np.arange(20 * MIB // BLOCK_BYTES), 20 * MIB)
    assert [end - start for start, end in long] == [MAX_REQUEST_BYTES] * 2 + [4 * MIB]


def test_signatures_in_urls_are_not_shown() -> None:
    """The SDK of Azure sorts the parameters of a SAS token, so the token itself is not found."""
    token = "?sv=2022&ss=b&sig=SECRET%2Babc%3D"
    requests = RemoteRequests(None, [token])
    shown = requests._without_secrets("'http://h/acc/c?sig=SECRET%2Babc%3D&ss=b&sv=2022' failed")
    assert shown == "'http://h/acc/c?sig=***&ss=b&sv=2022' failed"


@pytest.mark.parametrize("size", [1, 5000, 3 * MIB, 40 * MIB])
@pytest.mark.parametrize("part", [0.0, 0.001, 0.3, 0.5, 0.999, 1.0])
def test_the_written_end_is_found_by_few_requests(size: int, part: float) -> None:
    written = int(size * part)
    server = Server(a=b"x" * written + bytes(size - written))
    with server.storage.open("fake://b/a") as file:
        assert file.written_end(size) == written
        assert list(file.data_spans(0, size, is_appended=True)) == (
            [(0, written)] if written else []
        )
    assert len(server.reads) < 20


def test_zeros_in_a_record_do_not_end_a_long_file() -> None:
    content = b"x" * MIB + bytes(12 * MIB) + b"x" * 12 * MIB + bytes(60 * MIB)
    with Server(a=content).storage.open("fake://b/a") as file:
        assert file.written_end(len(content)) == 25 * MIB


def test_a_queue_that_is_filled_like_the_one_before_takes_one_request() -> None:
    written = 1_500_000
    server = Server(
        a=b"x" * written + bytes(4_500_000),
        b=b"x" * (written + 20) + bytes(4_499_980),
        c=b"x" * 5_000_000 + bytes(MIB - 48_576),
    )
    storage, ends, counts = server.storage, [], []
    for name in "abc":
        with storage.open(f"fake://b/{name}") as file:
            before = len(server.reads)
            ends.append(file.written_end(6_000_000))
            counts.append(len(server.reads) - before)
    assert ends == [written, written + 20, 5_000_000]
    assert counts[1] == 1 < counts[0]


def test_spans_that_are_announced_are_compared_with_the_version_once() -> None:
    server = Server(a=random.Random(1).randbytes(16 * MIB))
    with server.storage.open("fake://b/a") as file:
        file.read_ahead(np.array([0]), np.array([16 * MIB]))
        window = np.empty(16 * MIB, np.uint8)
        assert file.read_into(window, 0) == 16 * MIB
    assert window.tobytes() == server.files["b/a"]
    assert len(server.reads) == 8
    assert server.n_opened == 2


def test_an_object_that_is_replaced_after_it_was_announced_is_refused() -> None:
    server = Server(a=b"1" * 3 * MIB)
    with server.storage.open("fake://b/a") as file:
        server.fault = lambda _: server.files.update({"b/a": b"2" * 3 * MIB})
        file.read_ahead(np.array([0]), np.array([3 * MIB]))
        with pytest.raises(FileReplacedError):
            file.read(MIB, 10)


def test_what_was_announced_before_any_other_read_is_not_joined_with_another_version() -> None:
    server = Server(a=b"1" * 3 * MIB)
    with server.storage.open("fake://b/a") as file:
        file.read_ahead(np.array([0]), np.array([10]))
        while server.n_opened < 2:  # the version is compared when the bytes have come
            sleep(0.01)
        file.read_ahead(np.array([0]), np.array([10]))
        server.files["b/a"] = b"2" * 3 * MIB
        with pytest.raises(FileReplacedError):
            file.read_in_place(np.array([0, MIB]), np.array([10, 10]))


def test_an_object_found_replaced_during_a_listing_hides_no_other() -> None:
    names = [f"c/y/{queue}/{number}" for queue in range(2) for number in range(3)]
    server = Server(**dict.fromkeys(["c", *names], b"x"), a=b"1" * MIB)
    storage = server.storage
    with storage.open("fake://b/a") as file:
        file.read(0, 10)

        def listed(_: Any) -> Iterator[_Info]:
            for key, content in [*server.files.items()]:
                if key == "b/c/y/1/0" and server.files["b/a"].startswith(b"1"):
                    server.files["b/a"] = b"2" * MIB
                    with pytest.raises(FileReplacedError):
                        file.read(MIB - 10, 10)
                if key.startswith("b/c/"):
                    yield _Info(key, len(content), 0)

        server.get_file_info = listed  # type: ignore[method-assign]
        for queue in range(2):
            assert len(storage.list_folder(f"fake://b/c/y/{queue}")) == 3


def test_no_more_is_fetched_ahead_than_there_is_room_for() -> None:
    server = Server(a=bytes(100 * MIB))
    held = Event()
    server.fault = lambda _: None if held.wait(60) else b""
    with server.storage.open("fake://b/a") as file:
        file.read_ahead(np.array([0]), np.array([100 * MIB]))
        file.read_ahead(np.array([0]), np.array([100 * MIB]))
        held.set()
        assert file.read(0, 10).tobytes() == bytes(10)
    assert sum(size for _, size in server.reads) <= 40 * MIB


def test_what_a_long_read_passes_does_not_drive_other_blocks_out() -> None:
    cache = BlockCache(4 * BLOCK_BYTES, 2 * BLOCK_BYTES)
    cache.put(1, 0, np.ones(BLOCK_BYTES, np.uint8))
    for number in range(1, 20):
        cache.put(1, number * BLOCK_BYTES, np.zeros(BLOCK_BYTES, np.uint8), is_passing=True)
    assert cache.get(1, 0) is not None
    assert [number for number in range(1, 20) if cache.holds(1, number)] == [18, 19]


def test_blocks_that_came_together_are_given_together() -> None:
    cache = BlockCache()
    data = np.arange(3 * BLOCK_BYTES - 5, dtype=np.int64).astype(np.uint8)
    cache.put(1, 5 * BLOCK_BYTES, data)
    found = cache.get(1, 6, 2)
    assert found is not None
    assert found.tobytes() == data[BLOCK_BYTES:].tobytes()
    one = cache.get(1, 6)
    assert one is not None
    assert len(one) == BLOCK_BYTES
    assert cache.get(1, 8) is None
    assert cache.get(2, 6) is None


def test_files_are_opened_and_searched_together() -> None:
    ends = {f"q{number}": 1_000_000 + 20 * number for number in range(40)}
    server = Server(**{name: b"x" * end + bytes(6_000_000 - end) for name, end in ends.items()})
    storage = server.storage
    names = {f"fake://b/{name}" for name in ends}
    storage.prepare(names | {"fake://b/missing"}, first=names, last=names)
    n_reads = len(server.reads)
    assert n_reads <= 2 * len(ends) + 8
    for name, end in ends.items():
        with storage.open(f"fake://b/{name}") as file:
            assert file.written_end(6_000_000) == end
            assert file.read(0, 20).tobytes() == b"x" * 20
    assert len(server.reads) == n_reads


def test_one_request_tells_that_a_range_was_written_to_its_end() -> None:
    written = 20 * MIB
    server = Server(a=b"x" * written + bytes(80 * MIB))
    with server.storage.open("fake://b/a") as file:
        assert list(file.data_spans(0, 10 * MIB, is_appended=True)) == [(0, 10 * MIB)]
        assert list(file.data_spans(MIB, 5 * MIB, is_appended=True)) == [(MIB, 5 * MIB)]
        assert len(server.reads) == 1
        assert list(file.data_spans(5, 50 * MIB, is_appended=True)) == [(5, written)]
        n_reads = len(server.reads)
        for start, end, expected in (
            (0, 15 * MIB, [(0, 15 * MIB)]), (0, 60 * MIB, [(0, written)]), (30 * MIB, 90 * MIB, []),
        ):  # fmt: skip
            assert list(file.data_spans(start, end, is_appended=True)) == expected
        assert len(server.reads) == n_reads


def test_what_a_long_read_has_passed_is_dropped_before_what_comes_next() -> None:
    cache = BlockCache(4 * BLOCK_BYTES, 3 * BLOCK_BYTES)
    for number in range(3):
        cache.put(1, number * BLOCK_BYTES, np.zeros(BLOCK_BYTES, np.uint8), is_passing=True)
    assert cache.get(1, 0) is not None
    cache.put(1, 3 * BLOCK_BYTES, np.zeros(BLOCK_BYTES, np.uint8), is_passing=True)
    assert [number for number in range(4) if cache.holds(1, number)] == [1, 2, 3]
