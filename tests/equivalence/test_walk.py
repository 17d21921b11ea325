"""The fast walk over a log stops where the plain one stops, having found the same records."""

from __future__ import annotations

import random

import numpy as np
import pytest

import store_builder as build
import tiers
from equivalence.random_logs import assert_walked_alike
from rmqstore.errors import MalformedBytesError
from rmqstore.format.columns.search import find_next_record
from rmqstore.format.columns.walk import walk, walk_plainly
from rmqstore.format.framing import RECORDS
from rmqstore.format.record import split_record

BASE = 1 << 30


def _long_log(seed: int, n_bytes: int) -> tuple[bytearray, list[int]]:
    """Return a log with many chains; some bodies hold a fake record that fits its position."""
    rng = random.Random(seed)
    packed, starts = bytearray(), []
    body_bytes = rng.choice((50, 500, 5_000))
    while len(packed) < n_bytes:
        body = rng.randbytes(rng.randrange(body_bytes))
        at = len(packed)
        if rng.random() < 0.2:
            # A fake record whose physical offset fits its position: only the chain rules it out.
            inside = at + 88 + len(body)
            fake = build.pack(build.Record(body=bytes(rng.randrange(200))), BASE + inside)
            body += fake[: rng.choice((12, 60, len(fake), len(fake)))]
            body += rng.randbytes(rng.randrange(50))
        starts.append(at)
        record = build.Record(body=body, magic=rng.choice((build.V1, build.V2)))
        packed += build.pack(record, BASE + at)
    return packed, starts


def _assert_same(data: bytes, start: int, end: int) -> None:
    buf = np.frombuffer(data, np.uint8)
    fast, slow = walk(buf, start, end, BASE), walk_plainly(buf, start, end)
    assert fast.starts.tolist() == slow.starts.tolist()
    assert (fast.kind, fast.position, fast.reason) == (slow.kind, slow.position, slow.reason)


@pytest.mark.parametrize("seed", tiers.seeds(12))
def test_fast_walk_equals_the_plain_walk_on_valid_logs(seed: int) -> None:
    packed, starts = _long_log(seed, 1_500_000)
    end = len(packed)
    packed += random.Random(seed).choice(
        (b"", bytes(100), build.pack_blank(100).ljust(100, b"\0"), b"\xff" * 100)
    )
    data = bytes(packed)
    assert walk_plainly(np.frombuffer(data, np.uint8), 0, end).starts.tolist() == starts
    _assert_same(data, 0, len(data))
    _assert_same(data, 0, end)
    _assert_same(data, starts[3], starts[-5])


@pytest.mark.parametrize("seed", tiers.seeds(40))
def test_fast_walk_equals_the_plain_walk_on_damaged_logs(seed: int) -> None:
    packed, starts = _long_log(seed, 700_000)
    rng = random.Random(seed)
    for _ in range(rng.choice((1, 1, 3, 20))):
        kind, at = rng.randrange(4), rng.choice(starts)
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
    _assert_same(bytes(packed), 0, len(packed))
    cut = rng.randrange(len(packed))
    _assert_same(bytes(packed[:cut]), 0, cut)


@pytest.mark.parametrize("seed", tiers.seeds(30))
def test_ranges_walked_side_by_side_equal_each_by_itself(seed: int) -> None:
    rng = random.Random(seed)
    parts, is_damaged = {}, {}
    for number in range(rng.choice((2, 5, 40))):
        base = BASE + (number << 24)
        packed = bytearray()
        n_bytes = rng.choice((0, 300, 20_000, 600_000 if number < 2 else 3_000))
        while len(packed) < n_bytes:
            record = build.Record(body=rng.randbytes(rng.randrange(2_000)))
            packed += build.pack(record, base + len(packed))
        if not packed or rng.random() < 0.8:
            packed += build.pack_blank(100).ljust(100, b"\0")
        is_damaged[base] = rng.random() < 0.2
        if is_damaged[base]:
            at = rng.randrange(len(packed))
            packed[at : at + 4] = rng.randbytes(4)[: len(packed) - at]
        parts[base] = bytes(packed)
    assert_walked_alike(parts, is_damaged, RECORDS)


@pytest.mark.parametrize("seed", tiers.seeds(15))
def test_next_record_is_the_first_whole_one_that_knows_its_place(seed: int) -> None:
    packed, _ = _long_log(seed, 60_000)
    rng = random.Random(seed)
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
