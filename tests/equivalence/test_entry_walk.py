"""The fast walk over a DLedger log stops where the plain one stops, with the same records."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

import store_builder as build
import tiers
from equivalence.random_logs import assert_walked_alike
from rmqstore.format.columns.search import find_next_record
from rmqstore.format.columns.walk import walk, walk_plainly
from rmqstore.format.framing import ENTRIES, FrameNumbers, StopKind

BASE = 1 << 30
HEAD = build.ENTRY_BYTES
INDEX, TERM, POSITION, BODY_LENGTH = 8, 16, 24, 44
NUMBERS = (0, 1, 47, 48, 139, 200, 100_000, 1 << 30, -1, -5, -(1 << 31), (1 << 31) - 1)


def _log(
    rng: random.Random, n_bytes: int, base: int = BASE, *, with_fakes: bool = True
) -> tuple[bytearray, list[int]]:
    """Return entries with many chains, and where they begin.

    Some bodies may hold a fake entry that fits its position.
    """
    packed, frames = bytearray(), []
    body_bytes = rng.choice((50, 500, 5_000))
    first, term = rng.randrange(1000), rng.randrange(5)
    while len(packed) < n_bytes:
        body = rng.randbytes(rng.randrange(body_bytes))
        at = len(packed)
        number = first + len(frames)
        if with_fakes and rng.random() < 0.2:
            inside = at + HEAD + 88 + len(body)
            record = build.pack(build.Record(body=bytes(rng.randrange(200))), base + inside + HEAD)
            fake = build.pack_entry(record, base + inside, number, term)
            body += fake[: rng.choice((12, 60, len(fake), len(fake)))]
        term += rng.random() < 0.01
        frames.append(at)
        record = build.pack(build.Record(body=body), base + at + HEAD)
        packed += build.pack_entry(record, base + at, number, term)
    return packed, frames


def _assert_same(data: bytes, start: int, end: int, after: FrameNumbers | None = None) -> None:
    buf = np.frombuffer(data, np.uint8)
    fast = walk(buf, start, end, BASE, ENTRIES, after)
    slow = walk_plainly(buf, start, end, BASE, ENTRIES, after)
    assert fast.starts.tolist() == slow.starts.tolist()
    assert fast[1:] == slow[1:]


@pytest.mark.parametrize("seed", tiers.seeds(12))
def test_fast_walk_equals_the_plain_walk_on_valid_logs(seed: int) -> None:
    rng = random.Random(seed)
    packed, frames = _log(rng, 1_500_000)
    end = len(packed)
    packed += rng.choice((b"", bytes(100), build.pack_entry_blank(100).ljust(100, b"\0")))
    data = bytes(packed)
    buf = np.frombuffer(data, np.uint8)
    plain = walk_plainly(buf, 0, end, BASE, ENTRIES)
    assert plain.starts.tolist() == [frame + HEAD for frame in frames]
    assert plain.sizes().tolist() == [
        stop - frame - HEAD for frame, stop in zip(frames, [*frames[1:], end], strict=True)
    ]
    _assert_same(data, 0, len(data))
    _assert_same(data, 0, end)
    _assert_same(data, frames[3], frames[-5])
    numbers = ENTRIES.numbers(buf, frames[2])
    _assert_same(data, frames[3], len(data), numbers)
    assert walk(buf, frames[4], end, BASE, ENTRIES, numbers).kind is StopKind.STALE
    _assert_same(data, frames[4], len(data), numbers)


@pytest.mark.parametrize("seed", tiers.seeds(60))
def test_fast_walk_equals_the_plain_walk_on_damaged_logs(seed: int) -> None:
    rng = random.Random(seed)
    packed, frames = _log(rng, 700_000)
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.choice(frames)
        kind = rng.randrange(6)
        if kind == 0:  # both lengths, as a torn page of another time would have them
            size = rng.choice(NUMBERS)
            packed[at + 4 : at + 8] = size.to_bytes(4, signed=True)
            body_length = max(size - HEAD, -(1 << 31))
            packed[at + BODY_LENGTH : at + HEAD] = body_length.to_bytes(4, signed=True)
        elif kind == 1:
            packed[at + rng.randrange(HEAD)] ^= rng.randrange(1, 256)
        elif kind == 2:
            width = rng.randrange(20_000)
            packed[at : at + width] = bytes(min(width, len(packed) - at))
        elif kind == 3:
            field = rng.choice((INDEX, TERM, POSITION))
            number = rng.choice((0, 1, -1, (1 << 63) - 1, -(1 << 63)))
            packed[at + field : at + field + 8] = number.to_bytes(8, signed=True)
        elif kind == 4:
            packed[at : at + 8] = build.pack_entry_blank(rng.choice(NUMBERS))
        else:
            packed[at + HEAD + rng.randrange(80)] ^= 0x80
    _assert_same(bytes(packed), 0, len(packed))
    cut = rng.randrange(len(packed))
    _assert_same(bytes(packed[:cut]), 0, cut)


@pytest.mark.parametrize("byte", range(HEAD))
def test_every_byte_of_a_head_counts_but_channel_and_crcs(byte: int) -> None:
    rng = random.Random(byte)
    packed, frames = _log(rng, 8_000)
    row = len(frames) // 2
    packed[frames[row] + byte] ^= rng.randrange(1, 256)
    walked = walk_plainly(np.frombuffer(bytes(packed), np.uint8), 0, len(packed), BASE, ENTRIES)
    if 32 <= byte < BODY_LENGTH:
        assert (walked.kind, len(walked.starts)) == (StopKind.END, len(frames))
    elif TERM <= byte < POSITION and len(walked.starts) != row:
        assert len(walked.starts) == row + 1  # a higher term is fine; what follows is too low
        assert walked.kind is StopKind.STALE
    else:
        assert len(walked.starts) == row
        assert walked.kind is StopKind.DAMAGE  # the entry that follows continues the log
        assert walked.reason


@pytest.mark.parametrize("seed", tiers.seeds(30))
def test_ranges_walked_side_by_side_equal_each_by_itself(seed: int) -> None:
    rng = random.Random(seed)
    parts, is_damaged = {}, {}
    for number in range(rng.choice((2, 5, 40))):
        base = BASE + (number << 24)
        n_bytes = rng.choice((0, 300, 600_000 if number < 2 else 3_000))
        packed, frames = _log(rng, n_bytes, base, with_fakes=False)
        if not packed or rng.random() < 0.8:
            packed += build.pack_entry_blank(100).ljust(100, b"\0")
        is_damaged[base] = rng.random() < 0.3
        if is_damaged[base]:
            at = rng.choice([*frames, rng.randrange(len(packed))]) + rng.randrange(HEAD)
            packed[at % len(packed)] ^= rng.randrange(1, 256)
        parts[base] = bytes(packed)
    assert_walked_alike(parts, is_damaged, ENTRIES)


@pytest.mark.parametrize("seed", tiers.seeds(15))
def test_the_next_record_stands_in_an_entry_that_knows_its_place(seed: int) -> None:
    rng = random.Random(seed)
    packed, frames = _log(rng, 60_000)
    hit = {rng.randrange(len(frames)) for _ in range(len(frames) // 2)}
    for row in hit:
        packed[frames[row] + rng.choice((0, 4, POSITION, BODY_LENGTH, HEAD + 4))] ^= 0x55
    data = bytes(packed)
    buf = np.frombuffer(data, np.uint8)
    valid = [frame for row, frame in enumerate(frames) if row not in hit]
    for start in [0, *(rng.randrange(len(data)) for _ in range(40)), *(at + 1 for at in valid)]:
        found = find_next_record(buf, start, len(data), BASE, ENTRIES)
        following = next((frame for frame in valid if frame >= start), len(data))
        if found not in (following, len(data)):
            # an entry inside of a body that fits its position, which no chain leads to
            assert found < following
            assert struct.unpack_from(">i16xi", data, found)[0] == 1
