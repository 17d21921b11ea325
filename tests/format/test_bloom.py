"""Bloom filters of consumer groups. Judged by what brokers wrote into consumerFilter.json."""

from __future__ import annotations

import json

import pytest

from goldens import Golden
from rmqstore.format.hashing import _as_int, bit_positions, has_bits, may_match

# Of a broker with 32 expected consumers at 20 % error: CGSQL#Normal has the bits 10, 70, 93.
BIT_MAP = bytes.fromhex("0004000000000000400000200000")


def test_positions_are_those_a_broker_noted() -> None:
    assert bit_positions("CGSQL", "Normal", 112) == [10, 70, 93]


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


@pytest.mark.parametrize(
    ("bits", "found"), [([], True), ([10], True), ([10, 93], True), ([9], False)]
)
def test_bits_count_from_the_lowest_of_the_first_byte(bits: list[int], found: bool) -> None:
    assert has_bits(BIT_MAP, bits) is found
