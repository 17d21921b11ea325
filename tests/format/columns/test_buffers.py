"""Arrow arrays that are built without pandas equal those of ``pyarrow.array``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmqstore.format.columns.buffers import booleans, mask_of, numbers, texts

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
