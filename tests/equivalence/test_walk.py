"""The fast walk over a log stops where the plain one stops, having found the same records.

In a log of records, and in one of DLedger's entries, which hold a record each.
"""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

import store_builder as build
import tiers
from equivalence.random_logs import assert_walked_alike
from rmqstore.errors import MalformedBytesError
from rmqstore.format.columns.search import find_next_record
from rmqstore.format.columns.walk import walk, walk_plainly
from rmqstore.format.framing import ENTRIES, RECORDS, FrameNumbers, Framing, StopKind
from rmqstore.format.record import split_record

BASE = 1 << 30
HEAD = build.ENTRY_BYTES
INDEX, TERM, POSITION, BODY_LENGTH = 8, 16, 24, 44
NUMBERS = (0, 1, 47, 48, 139, 200, 100_000, 1 << 30, -1, -5, -(1 << 31), (1 << 31) - 1)
framings = pytest.mark.parametrize("framing", [RECORDS, ENTRIES], ids=["records", "entries"])


def _log(
    rng: random.Random,
    n_bytes: int,
    framing: Framing,
    base: int = BASE,
    *,
    with_fakes: bool = True,
) -> tuple[bytearray, list[int]]:
    """Return a log with many chains, and where its frames begin.

    Some bodies may hold a fake frame that fits its position: only the chain rules it out.
    """
    packed, frames = bytearray(), list[int]()
    body_bytes = rng.choice((50, 500, 5_000))
    first, term = rng.randrange(1000), rng.randrange(5)

    def framed(record: build.Record, at: int) -> bytes:
        if framing is RECORDS:
            return build.pack(record, base + at)
        stored = build.pack(record, base + at + HEAD)
        return build.pack_entry(stored, base + at, first + len(frames), term)

    while len(packed) < n_bytes:
        at, body = len(packed), rng.randbytes(rng.randrange(body_bytes))
        if with_fakes and rng.random() < 0.2:
            inside = at + framing.head_bytes + 88 + len(body)
            fake = framed(build.Record(body=bytes(rng.randrange(200))), inside)
            body += fake[: rng.choice((12, 60, len(fake), len(fake)))]
            body += rng.randbytes(rng.randrange(50))
        term += rng.random() < 0.01
        packed += framed(build.Record(body=body, magic=rng.choice((build.V1, build.V2))), at)
        frames.append(at)
    return packed, frames


def _blank(framing: Framing) -> bytes:
    pack = build.pack_blank if framing is RECORDS else build.pack_entry_blank
    return pack(100).ljust(100, b"\0")


def _assert_same(
    data: bytes, start: int, end: int, framing: Framing, after: FrameNumbers | None = None
) -> None:
    buf = np.frombuffer(data, np.uint8)
    fast = walk(buf, start, end, BASE, framing, after)
    slow = walk_plainly(buf, start, end, BASE, framing, after)
    assert fast.starts.tolist() == slow.starts.tolist()
    assert fast[1:] == slow[1:]


@framings
@pytest.mark.parametrize("seed", tiers.seeds(12))
def test_fast_walk_equals_the_plain_walk_on_valid_logs(seed: int, framing: Framing) -> None:
    rng, head = random.Random(seed), framing.head_bytes
    packed, frames = _log(rng, 1_500_000, framing)
    end = len(packed)
    packed += rng.choice((b"", bytes(100), _blank(framing), b"\xff" * 100))
    data = bytes(packed)
    plain = walk_plainly(np.frombuffer(data, np.uint8), 0, end, BASE, framing)
    assert plain.starts.tolist() == [frame + head for frame in frames]
    assert plain.sizes().tolist() == [
        stop - frame - head for frame, stop in zip(frames, [*frames[1:], end], strict=True)
    ]
    for bounds in ((0, len(data)), (0, end), (frames[3], frames[-5])):
        _assert_same(data, *bounds, framing)


@pytest.mark.parametrize("seed", tiers.seeds(12))
def test_entries_go_on_after_the_numbers_of_the_one_before(seed: int) -> None:
    packed, frames = _log(random.Random(seed), 200_000, ENTRIES)
    buf = np.frombuffer(bytes(packed), np.uint8)
    numbers = ENTRIES.numbers(buf, frames[2])
    for start in frames[3:5]:
        _assert_same(bytes(packed), start, len(packed), ENTRIES, numbers)
    assert walk(buf, frames[4], len(packed), BASE, ENTRIES, numbers).kind is StopKind.STALE


def _damage_record(rng: random.Random, packed: bytearray, at: int) -> None:
    kind = rng.randrange(4)
    if kind == 0:  # the size: too long, too short, negative
        size = rng.choice((0, 1, 90, 200, 100_000, 1 << 30, -5, -(1 << 31)))
        packed[at : at + 4] = size.to_bytes(4, signed=True)
    elif kind == 1:
        packed[at + 4 + rng.randrange(4)] ^= rng.randrange(1, 256)
    elif kind == 2:
        width = rng.randrange(20_000)
        packed[at : at + width] = bytes(min(width, len(packed) - at))
    else:
        packed[at] ^= 0x80


def _damage_entry(rng: random.Random, packed: bytearray, at: int) -> None:
    kind = rng.randrange(4)
    if kind == 0:  # both lengths, as a torn page of another time would have them
        size = rng.choice(NUMBERS)
        packed[at + 4 : at + 8] = size.to_bytes(4, signed=True)
        body_length = max(size - HEAD, -(1 << 31))
        packed[at + BODY_LENGTH : at + HEAD] = body_length.to_bytes(4, signed=True)
    elif kind == 1:
        packed[at + rng.randrange(HEAD)] ^= rng.randrange(1, 256)
    elif kind == 2:
        field = rng.choice((INDEX, TERM, POSITION))
        number = rng.choice((0, 1, -1, (1 << 63) - 1, -(1 << 63)))
        packed[at + field : at + field + 8] = number.to_bytes(8, signed=True)
    else:
        packed[at : at + 8] = build.pack_entry_blank(rng.choice(NUMBERS))


@framings
@pytest.mark.parametrize("seed", tiers.seeds(60))
def test_fast_walk_equals_the_plain_walk_on_damaged_logs(seed: int, framing: Framing) -> None:
    rng = random.Random(seed)
    packed, frames = _log(rng, 700_000, framing)
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.choice(frames)
        if framing is ENTRIES and rng.random() < 0.6:
            _damage_entry(rng, packed, at)
        else:
            _damage_record(rng, packed, at + framing.head_bytes)
    _assert_same(bytes(packed), 0, len(packed), framing)
    cut = rng.randrange(len(packed))
    _assert_same(bytes(packed[:cut]), 0, cut, framing)


@pytest.mark.parametrize("byte", range(HEAD))
def test_every_byte_of_a_head_counts_but_channel_and_crcs(byte: int) -> None:
    rng = random.Random(byte)
    packed, frames = _log(rng, 8_000, ENTRIES)
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


@framings
@pytest.mark.parametrize("seed", tiers.seeds(30))
def test_ranges_walked_side_by_side_equal_each_by_itself(seed: int, framing: Framing) -> None:
    rng = random.Random(seed)
    parts, is_damaged = {}, {}
    for number in range(rng.choice((2, 5, 40))):
        base = BASE + (number << 24)
        n_bytes = rng.choice((0, 300, 20_000, 600_000 if number < 2 else 3_000))
        packed, frames = _log(rng, n_bytes, framing, base, with_fakes=False)
        if not packed or rng.random() < 0.8:
            packed += _blank(framing)
        is_damaged[base] = rng.random() < 0.25
        if is_damaged[base]:
            at = rng.choice([*frames, rng.randrange(len(packed))])
            at += rng.randrange(framing.head_bytes or 8)
            packed[at % len(packed)] ^= rng.randrange(1, 256)
        parts[base] = bytes(packed)
    assert_walked_alike(parts, is_damaged, framing)


@pytest.mark.parametrize("seed", tiers.seeds(15))
def test_next_record_is_the_first_whole_one_that_knows_its_place(seed: int) -> None:
    rng = random.Random(seed)
    packed, _ = _log(rng, 60_000, RECORDS)
    for _ in range(40):
        packed[rng.randrange(len(packed))] ^= rng.randrange(1, 256)
    data = bytes(packed)

    def is_record(at: int) -> bool:
        if data[at + 4 : at + 7] != b"\xda\xa3\x20":
            return False
        try:
            return int(split_record(data, at).fixed["physical_offset"]) == BASE + at
        except MalformedBytesError:
            return False

    places = [at for at in range(len(data) - 8) if is_record(at)]
    buf = np.frombuffer(data, np.uint8)
    starts = [rng.randrange(len(data)) for _ in range(60)]
    for start in [0, *starts, *(at + 1 for at in places[:20])]:
        end = rng.choice((len(data), min(start + 3000, len(data))))
        expected = next((at for at in places if start <= at < end), end)
        assert find_next_record(buf, start, end, BASE) == expected


@pytest.mark.parametrize("seed", tiers.seeds(15))
def test_the_next_record_stands_in_an_entry_that_knows_its_place(seed: int) -> None:
    rng = random.Random(seed)
    packed, frames = _log(rng, 60_000, ENTRIES)
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
