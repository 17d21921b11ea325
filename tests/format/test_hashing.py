"""Checksums, hashes and Bloom filters, judged by other code than ours and by what brokers wrote."""

from __future__ import annotations

import json
import random
import zlib

import pytest
from crcmod.predefined import mkPredefinedCrcFun

from goldens import Golden
from rmqstore.format import hashing
from rmqstore.format.hashing import (
    _as_int,
    bit_positions,
    body_crc,
    body_crcs,
    may_match,
)

REFERENCE = mkPredefinedCrcFun("crc-32")


@pytest.fixture(params=["as installed", "zlib"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with the library of the extra ``fast``, if it is installed, and without it."""
    if request.param == "zlib":
        monkeypatch.setattr(hashing, "crc32", zlib.crc32)


def some_bytes() -> list[bytes]:
    source = random.Random(7)
    lengths = [*range(70), 255, 256, 257, 4095, 4096, 4097, 1 << 20]
    return [source.randbytes(length) for length in lengths]


@pytest.mark.usefixtures("implementation")
def test_checksums_are_those_of_the_reference() -> None:
    bodies = some_bytes()
    expected = [REFERENCE(body) & 0x7FFFFFFF for body in bodies]
    assert [body_crc(body) for body in bodies] == expected
    assert [body_crc(memoryview(body)) for body in bodies] == expected
    assert body_crcs(bodies).tolist() == expected
    assert body_crcs([]).tolist() == []
    assert expected[0] == 0
    assert any(REFERENCE(body) > 0x7FFFFFFF for body in bodies)


# Of a broker with 32 expected consumers at 20 % error: CGSQL#Normal has the bits 10, 70, 93.
BIT_MAP = bytes.fromhex("0004000000000000400000200000")


def test_halves_of_a_hash_are_ints_of_java() -> None:
    numbers = [0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32]
    assert [_as_int(number) for number in numbers] == [0, (1 << 31) - 1, -(1 << 31), -1, 0]


def test_positions_are_those_of_the_live_store(golden_store: Golden) -> None:
    table = json.loads(
        (golden_store("live") / "config/consumerFilter.json").read_text(encoding="utf-8")
    )
    noted = table["filterDataByTopic"]["LivePlain"]["groupFilterData"]["CG_sql"]["bloomFilterData"]
    assert bit_positions("CG_sql", "LivePlain", noted["bitNum"]) == noted["bitPos"]


def test_a_group_may_match_where_all_its_bits_are_set() -> None:
    assert may_match(BIT_MAP, "CGSQL", "Normal")
    assert not may_match(BIT_MAP, "CGSQL", "Other")
    assert not may_match(bytes(14), "CGSQL", "Normal")
    assert may_match(b"", "CGSQL", "Normal")
    for bit in (10, 70, 93):
        lacking = bytearray(BIT_MAP)
        lacking[bit // 8] ^= 1 << bit % 8
        assert not may_match(bytes(lacking), "CGSQL", "Normal"), bit
