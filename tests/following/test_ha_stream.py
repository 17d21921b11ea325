"""The stream of the port for replicas, also in controller mode, without a socket."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from rmqstore.errors import MalformedBytesError, StoreStateError
from rmqstore.remoting import Address
from rmqstore.replica.agreement import compared_from, consistent_point, request_at, served_bounds
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.ha import (
    HANDSHAKE_HEADER,
    MAX_BODY_BYTES,
    NEVER,
    Connection,
    ControllerStream,
    Handshake,
    HaStream,
    handshake_request,
    handshake_size,
    read_handshake,
    shake_hands,
)
from rmqstore.replica.state import epochs_within, new_learner_id
from rmqstore.storage.broker.epochs import Epoch


def frame(place: int, body: bytes) -> bytes:
    return struct.pack(">qi", place, len(body)) + body


def fed(stream: HaStream, data: bytes, cuts: list[int]) -> tuple[bytes, list[int], list[Epoch]]:
    """Return the bytes of the log in a stream that comes in portions, its heartbeats and epochs."""
    request, joined, beats = stream.position, b"", list[int]()
    for low, high in zip([0, *cuts], [*cuts, len(data)], strict=True):
        for chunk in stream.feed(memoryview(data)[low:high]):
            if not chunk.data:
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


ONE, TWO, FIVE = Epoch(1, 0), Epoch(2, 150), Epoch(5, 40_000)


def in_epoch(place: int, body: bytes, epoch: Epoch, confirm_offset: int = 7) -> bytes:
    return struct.pack(">iiqiqq", 2, len(body), place, *epoch, confirm_offset) + body


def test_any_portions_give_the_same_bytes_and_epochs() -> None:
    """The last chunk of an epoch is announced as one of the next, also of one that is new."""
    data = in_epoch(100, b"", ONE) + in_epoch(100, b"a", ONE) + in_epoch(101, b"b" * 49, TWO)
    data += in_epoch(150, b"c" * 32768, TWO) + in_epoch(32918, b"d" * 7082, FIVE)
    data += in_epoch(40_000, b"", FIVE) + in_epoch(40_000, b"e" * 100, FIVE)
    joined = b"a" + b"b" * 49 + b"c" * 32768 + b"d" * 7082 + b"e" * 100
    expected = joined, [100, 40_000], [ONE, TWO, FIVE]
    require_same(lambda: ControllerStream(100, [ONE, TWO]), data, expected)
    stream = ControllerStream(100, [ONE, TWO])
    stream.feed(memoryview(data))
    assert stream.confirm_offset == 7


def test_an_empty_log_sends_heartbeats_from_before_its_begin() -> None:
    stream = ControllerStream(0, [ONE])
    pieces = stream.feed(memoryview(in_epoch(-1, b"", ONE) + in_epoch(0, b"a", ONE)))
    assert [(piece.physical_offset, bytes(piece.data)) for piece in pieces] == [(0, b""), (0, b"a")]
    with pytest.raises(MalformedBytesError):
        stream.feed(memoryview(in_epoch(-1, b"", ONE)))


@pytest.mark.parametrize(
    "header",
    [
        (1, 5, 100, 1, 0, 0), (0, 5, 100, 1, 0, 0), (2, 5, 101, 1, 0, 0), (2, 0, -1, 1, 0, 0),
        (2, -1, 100, 1, 0, 0), (2, MAX_BODY_BYTES + 1, 100, 1, 0, 0),
        (2, 5, 100, 1, 1, 0),  # starts elsewhere
        (2, 60, 100, 1, 0, 0),  # reaches into the next epoch
        (2, 5, 100, 2, 150, 0),  # begins later
        (2, 5, 100, 2, 100, 0), (2, 5, 100, 0, 0, 0), (2, 5, 100, -1, 0, 0),
        (2, 5, 100, 3, 102, 0),  # a new one before an older one starts
        (2, 5, 100, 3, 150, 0),
    ],
)  # fmt: skip
def test_headers_of_controller_mode_that_cannot_be_are_refused(header: tuple[int, ...]) -> None:
    stream = ControllerStream(100, [ONE, TWO])
    with pytest.raises(MalformedBytesError):
        stream.feed(memoryview(struct.pack(">iiqiqq", *header)))


def test_epochs_never_go_back_and_a_new_one_starts_where_the_log_is() -> None:
    stream = ControllerStream(100, [ONE, TWO])
    stream.feed(memoryview(in_epoch(100, b"x" * 50, TWO)))
    for epoch in (ONE, Epoch(3, 149), Epoch(3, 152)):
        with pytest.raises(MalformedBytesError):
            stream.feed(memoryview(in_epoch(150, b"y", epoch)))
    stream = ControllerStream(150, [ONE, TWO])
    for number in range(3, 90_000):  # a broker that goes on with this is given up
        try:
            stream.feed(memoryview(in_epoch(150, b"", Epoch(number, 150))))
        except MalformedBytesError:
            break
    assert number == len(stream.epochs) + 1 == (1 << 16) + 1


def test_the_bytes_of_a_session() -> None:
    assert handshake_request(-(1 << 62)).hex() == "0000000100000001" + "c000000000000000"
    answer = bytes.fromhex("000000010000000c00000000007d759800000001000000010000000000000000")
    header, body = answer[: HANDSHAKE_HEADER.size], answer[HANDSHAKE_HEADER.size :]
    assert handshake_size(header) == len(body)
    assert read_handshake(header, body) == Handshake(8_222_104, [ONE])
    stream = ControllerStream(0, [ONE])
    assert stream.report(0).hex() == "00000002" + "0000000000000000"
    assert stream.report(NEVER).hex() == "00000002" + "c000000000000000"


def test_the_id_of_a_learner_counts_nowhere() -> None:
    ids = {new_learner_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(-(1 << 62) <= each < -(1 << 61) for each in ids)


@pytest.mark.parametrize(
    ("header", "epochs"),
    [
        ((2, 12, 50, 1), [ONE]), ((1, 13, 50, 1), [ONE]), ((1, -12, 50, 1), [ONE]),
        ((1, (1 << 16) * 12 + 12, 50, 1), [ONE]), ((1, (1 << 31) - 8, 50, 1), [ONE]),
        ((1, 12, -1, 1), [ONE]), ((1, 12, 1 << 62, 1), [ONE]), ((1, 12, 50, 2), [ONE]),
        ((1, 0, 50, -1), []), ((1, 12, 50, -1), [Epoch(-1, 0)]), ((1, 12, 50, 1), [Epoch(1, -1)]),
        ((1, 12, 50, 1), [Epoch(1, 51)]), ((1, 24, 50, 1), [ONE, ONE]),
        ((1, 24, 50, 1), [Epoch(2, 10), Epoch(1, 20)]),
        ((1, 24, 50, 2), [Epoch(1, 20), Epoch(2, 10)]),
    ],
)  # fmt: skip
def test_answers_to_a_handshake_that_cannot_be_are_refused(
    header: tuple[int, ...], epochs: list[Epoch]
) -> None:
    packed = struct.pack(">iiqi", *header)
    body = b"".join(struct.pack(">iq", *epoch) for epoch in epochs)
    with pytest.raises(MalformedBytesError):
        read_handshake(packed, body[: handshake_size(packed)])


@pytest.mark.parametrize(
    ("own", "own_end", "others", "others_end", "expected"),
    [
        ([ONE], 100, [ONE], 80, 80), ([ONE], 80, [ONE], 100, 80),
        ([ONE], 300, [ONE, TWO], 400, 150), ([ONE, TWO], 300, [ONE], 400, 150),
        ([ONE, TWO], 300, [ONE, TWO, FIVE], 50_000, 300),
        ([ONE, Epoch(2, 140)], 300, [ONE, TWO], 400, 140),
        ([ONE, Epoch(3, 160)], 300, [ONE, TWO], 400, 150), ([TWO], 300, [TWO, FIVE], 50_000, 300),
        ([Epoch(3, 160)], 300, [ONE, TWO], 400, None), ([ONE], 300, [Epoch(1, 5)], 400, None),
        ([], 300, [ONE], 400, None),
    ],
)  # fmt: skip
def test_the_consistent_point(
    own: list[Epoch], own_end: int, others: list[Epoch], others_end: int, expected: int | None
) -> None:
    assert consistent_point(own, own_end, others, others_end) == expected


def test_a_broker_serves_its_log_from_its_first_epoch_on() -> None:
    assert served_bounds(LogBounds(0, 10), [ONE], 20, 100) == LogBounds(0, 20)
    assert served_bounds(LogBounds(200, 300), [TWO], 400, 100) == LogBounds(200, 400)
    assert served_bounds(LogBounds(0, 300), [TWO], 400, 100) == LogBounds(200, 400)
    assert served_bounds(LogBounds(0, 300), [Epoch(1, 200)], 400, 100) == LogBounds(200, 400)
    with pytest.raises(StoreStateError, match="150"):
        served_bounds(LogBounds(0, 160), [TWO], 199, 100)


def test_epochs_of_a_part_of_a_log() -> None:
    epochs = [ONE, TWO, FIVE]
    assert epochs_within(epochs, 0, 150) == [ONE]
    assert epochs_within(epochs, 0, 151) == [ONE, TWO]
    assert epochs_within(epochs, 150, 50_000) == [TWO, FIVE]
    assert epochs_within(epochs, 149, 50_000) == epochs
    assert epochs_within(epochs, 60_000, 70_000) == [FIVE]
    assert epochs_within([], 0, 10) == []
    assert epochs_within(epochs, 0, 0) == []


@pytest.mark.parametrize("cut", [1, 19, 20, 21, 31])
def test_an_answer_to_a_handshake_may_come_in_pieces(cut: int) -> None:
    answer = struct.pack(">iiqiiq", 1, 12, 500, 1, *ONE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection(Address(*listener.getsockname()), 5)
        master, _ = listener.accept()
        has_asked = False

        def gives_up() -> bool:
            """Send the rest when the follower has met the end of the first piece."""
            nonlocal has_asked
            if not has_asked:
                has_asked = True
                master.sendall(answer[cut:])
            return False

        with closing(connection), master:
            master.sendall(answer[:cut])
            assert shake_hands(connection, -1, 5, gives_up) == Handshake(500, [ONE])
            assert has_asked
