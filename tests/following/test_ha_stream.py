"""The stream of the port for replicas, without a socket."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from rmqstore.errors import MalformedBytesError
from rmqstore.replica.agreement import compared_from, request_at
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.ha import MAX_BODY_BYTES, NEVER, HaStream
from rmqstore.storage.broker.epochs import Epoch


def frame(place: int, body: bytes) -> bytes:
    return struct.pack(">qi", place, len(body)) + body


def fed(stream: HaStream, data: bytes, cuts: list[int]) -> tuple[bytes, list[int], list[Epoch]]:
    """Return the bytes of the log in a stream that comes in portions, its heartbeats and epochs."""
    request, joined, beats = stream.position, b"", list[int]()
    for low, high in zip([0, *cuts], [*cuts, len(data)], strict=True):
        for chunk in stream.feed(memoryview(data)[low:high]):
            if chunk.is_heartbeat:
                beats.append(chunk.physical_offset)
            else:
                assert chunk.physical_offset == request + len(joined)
                joined += bytes(chunk.data)
    assert stream.position == request + len(joined)
    return joined, beats, stream.epochs


def require_same(make: Callable[[], HaStream], data: bytes, expected: tuple[Any, ...]) -> None:
    """Require that a stream gives the same, however its bytes are cut."""
    dice = random.Random(3)
    samples = [sorted(dice.sample(range(1, len(data)), dice.randint(1, 20))) for _ in range(50)]
    for cuts in ([], *([cut] for cut in range(1, 200)), *samples):
        assert fed(make(), data, cuts) == expected


def test_any_portions_give_the_same_bytes() -> None:
    bodies = [b"", b"a", b"", b"x" * 32768, b"bc", b"", b"y" * 70_000]
    data, place = b"", 100
    for body in bodies:
        data += frame(place, body)
        place += len(body)
    expected = b"".join(bodies), [100, 101, 100 + 32771], []
    require_same(lambda: HaStream(100), data, expected)


@pytest.mark.parametrize(
    "header",
    [(101, 5), (99, 0), (-1, 5), (0, 5), (100, -1), (100, MAX_BODY_BYTES + 1), (100, 1 << 30)],
)
def test_other_offsets_and_impossible_sizes_are_refused(header: tuple[int, int]) -> None:
    stream = HaStream(100)
    with pytest.raises(MalformedBytesError):
        stream.feed(memoryview(struct.pack(">qi", *header)))


def test_a_report_is_one_number_and_never_is_far_below_every_limit() -> None:
    stream = HaStream(0)
    assert stream.report(NEVER) == bytes.fromhex("c000000000000000")
    assert stream.report(1) == bytes(7) + b"\1"
    assert -(1 << 63) < NEVER - (1 << 61) < 0


@pytest.mark.parametrize(
    ("extent", "bounds", "expected"),
    [
        (LogBounds(0, 0), LogBounds(0, 0), 0), (LogBounds(0, 50), LogBounds(0, 90), 40),
        (LogBounds(0, 90), LogBounds(0, 50), 40), (LogBounds(45, 50), LogBounds(0, 90), 45),
        (LogBounds(0, 50), LogBounds(48, 90), 48), (LogBounds(64, 64), LogBounds(64, 90), 64),
    ],
)  # fmt: skip
def test_what_is_compared(extent: LogBounds, bounds: LogBounds, expected: int) -> None:
    assert compared_from(extent, bounds, 10) == expected


def test_byte_0_of_a_log_of_several_files_is_not_asked_for() -> None:
    assert request_at(0, LogBounds(0, 99), 100) == 0
    assert request_at(0, LogBounds(0, 100), 100) == 1
    assert request_at(7, LogBounds(0, 100), 100) == 7
