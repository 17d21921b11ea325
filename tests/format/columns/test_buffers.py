"""Arrow arrays that are built without pandas equal those of ``pyarrow.array``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmqstore.format.columns.buffers import (
    array_bytes,
    booleans,
    mask_of,
    numbers,
    numbers_of,
    texts,
    texts_where,
)

SOME = np.arange(37) % 3 == 0


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint64, np.float64])
@pytest.mark.parametrize("taken", [slice(None), slice(3, 20, 2), slice(0, 0)])
def test_numbers(kind: Any, taken: slice) -> None:
    values = np.arange(40).astype(kind)[taken]
    assert numbers(values).equals(pa.array(values))


@pytest.mark.parametrize("taken", [slice(None), slice(5, 6), slice(0, 0)])
def test_booleans(taken: slice) -> None:
    assert booleans(SOME[taken]).equals(pa.array(SOME[taken]))


@pytest.mark.parametrize(("start", "count"), [(0, 37), (3, 20), (8, 8), (36, 1), (5, 0)])
def test_masks(start: int, count: int) -> None:
    assert np.array_equal(mask_of(pa.array(SOME).slice(start, count)), SOME[start : start + count])
    assert mask_of(pa.array([], pa.bool_())).tolist() == []


@pytest.mark.parametrize("values", [[], [""], ["a", "", "ü", "日本", "a" * 100]])
def test_texts(values: list[str]) -> None:
    assert texts(values).equals(pa.array(values, pa.string()))


@pytest.mark.parametrize(
    "values", [[], [None], ["a", None, "", "\u00fc", None], [None] * 9 + ["b"]], ids=str
)
def test_texts_where_some_are_missing(values: list[str | None]) -> None:
    assert texts_where(values).equals(pa.array(values, pa.string()))


@pytest.mark.parametrize("count", [0, 1, 8, 9, 100])
def test_booleans_where_some_are_missing(count: int) -> None:
    values, valid = (np.arange(count) % step == 0 for step in (2, 3))
    assert booleans(values, valid).equals(pa.array(values, mask=~valid))


@pytest.mark.parametrize("taken", [slice(None), slice(3, 7), slice(0, 0)])
def test_numbers_of_an_array(taken: slice) -> None:
    numbers = np.arange(10, dtype=np.int32)
    array = pa.array(numbers)[taken]
    assert numbers_of(array).tolist() == numbers[taken].tolist()
    times = pa.array(numbers.astype(np.int64)).cast(pa.timestamp("us"))
    assert numbers_of(times.cast(pa.int64())[taken]).tolist() == numbers[taken].tolist()


@pytest.mark.parametrize("offsets", [None, b"", bytes(4)])
def test_an_empty_array_may_have_no_offsets(offsets: bytes | None) -> None:
    buffer = None if offsets is None else pa.py_buffer(offsets)
    empty = pa.Array.from_buffers(pa.string(), 0, [None, buffer, pa.py_buffer(b"")])
    data, bounds = array_bytes(empty)
    assert (data.tolist(), bounds.tolist()) == ([], [0])
