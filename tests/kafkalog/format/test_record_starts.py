"""Records that are supposed and proved are those that chains followed from the start give."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from kafka_batches import Row, record
from kafkalog.format import record_starts as module
from kafkalog.format.record_fields import Fields, proved_fields, read_fields
from kafkalog.format.record_starts import SLACK, record_starts, supposed_starts

Value = Callable[[random.Random, int], bytes | None]


def nested(chance: random.Random, number: int) -> bytes:
    return b"".join(record(at, Row(b"k", bytes(chance.randrange(40)))) for at in range(number % 7))


VALUES: dict[str, Value] = {
    "text": lambda _, number: b"value %d" % number * 12,
    "lengths": lambda chance, _: b"x" * chance.randrange(400),
    "zeros": lambda chance, _: bytes(chance.randrange(300)),
    "noise": lambda chance, _: chance.randbytes(chance.randrange(300)),
    "high bits": lambda chance, _: b"\xff" * chance.randrange(300),
    "records": nested,
    "tombstones": lambda _, __: None,
    "long": lambda chance, number: b"y" * (20_000 if number % 50 == 0 else chance.randrange(90)),
}


def joined(value: Value, counts: list[int], seed: int) -> tuple[np.ndarray, ...]:
    """Return the records of batches, and where each batch starts, ends and how many it has."""
    chance = random.Random(seed)
    batches = [
        b"".join(record(at, Row(b"key", value(chance, at), (), at, at)) for at in range(count))
        for count in counts
    ]
    ends = np.cumsum([len(batch) for batch in batches]).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    data = np.frombuffer(b"".join(batches) + bytes(SLACK), np.uint8).copy()
    return data, starts, ends, np.array(counts, np.int64)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize(
    "counts", [[2000], [500, 3, 0, 700, 48], [90] * 40, [47, 47], [64, 65, 128] * 9], ids=str
)
def test_supposed_records_are_those_of_the_chains(kind: str, counts: list[int]) -> None:
    for seed in range(5):
        data, starts, ends, counts_ = joined(VALUES[kind], counts, seed)
        bodies, body_ends = record_starts(data, starts, ends, counts_)
        proved = proved_records(data, starts, ends, counts_)
        if proved is not None:
            assert_same_fields(proved, read_fields(data, bodies, body_ends))


def proved_records(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, counts: np.ndarray
) -> Fields | None:
    begins = supposed_starts(data, starts, ends, counts)
    return None if begins is None else proved_fields(data, begins, ends, counts)


def assert_same_fields(one: Fields, other: Fields) -> None:
    for name, values, others in zip(Fields._fields, one, other, strict=True):
        assert np.array_equal(values, others), name


@pytest.mark.parametrize("kind", ["text", "lengths", "zeros", "high bits", "tombstones", "long"])
@pytest.mark.parametrize("counts", [[90] * 40, [2000, 1500]], ids=str)
def test_the_quick_way_proves_nearly_all_records(kind: str, counts: list[int]) -> None:
    assert proved_records(*joined(VALUES[kind], counts, 0)) is not None


@pytest.mark.parametrize("kind", ["text", "lengths", "tombstones", "noise"])
def test_large_batches_are_cut_into_many_chains(kind: str) -> None:
    records = joined(VALUES[kind], [2000, 1500], 0)
    firsts, owners = module._chains(*records)
    assert len(firsts) > 60
    assert np.array_equal(np.unique(owners), [0, 1])
    bodies, ends = record_starts(*records)
    starts = {0, *ends.tolist()}
    assert len(set(firsts.tolist()) & starts) > 0.9 * len(firsts)
    assert len(bodies) == 3500


def test_damage_is_never_proved() -> None:
    chance = random.Random(7)
    for kind in ("text", "zeros", "records", "tombstones"):
        data, starts, ends, counts = joined(VALUES[kind], [400, 300], 1)
        for _ in range(200):
            changed = data.copy()
            changed[chance.randrange(len(data) - SLACK)] ^= 1 << chance.randrange(8)
            assert_never_wrong(changed, starts, ends, counts)
        for wrong in (counts + 1, counts - 1, np.array([400, 0]), np.array([0, 300])):
            assert_never_wrong(data, starts, ends, wrong)


def assert_never_wrong(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, counts: np.ndarray
) -> None:
    """Records that are proved are those of the careful path; what it refuses is not proved."""
    proved = proved_records(data, starts, ends, counts)
    if proved is not None:
        bodies, body_ends = record_starts(data, starts, ends, counts)
        assert_same_fields(proved, read_fields(data, bodies, body_ends))
