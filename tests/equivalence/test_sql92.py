"""Filters on columns agree with the plain evaluator; property columns hold what was parsed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import goldens
import tiers
from equivalence.plain_filters import matches
from equivalence.random_filters import (
    VALUES,
    random_expression,
    random_properties,
    valid_expression,
)
from equivalence.random_logs import random_log
from rmqstore.errors import OptionError
from rmqstore.format.columns.decode import property_values
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.format.record import decode_record
from rmqstore.query.sql92_filter import Filter, compile_filter


def compiled_ones(rng: random.Random, n: int) -> list[Filter]:
    found = []
    while len(found) < n:
        try:
            found.append(compile_filter(rng.choice((random_expression, valid_expression))(rng)))
        except OptionError:
            continue
    return found


def columns_of(rows: list[dict[str, str]], names: tuple[str, ...]) -> dict[str, pa.Array]:
    return {name: pa.array([row.get(name) for row in rows], pa.string()) for name in names}


@pytest.mark.parametrize("seed", tiers.seeds(30))
def test_masks_equal_the_plain_evaluator(seed: int) -> None:
    rng = random.Random(seed)
    rows = [random_properties(rng) for _ in range(rng.choice((1, 7, 60)))]
    met = set()
    for compiled in compiled_ones(rng, 60):
        kept = compiled.keep(columns_of(rows, compiled.names), len(rows))
        assert kept.dtype == np.bool_
        assert kept.tolist() == [matches(compiled.tree, row) for row in rows], compiled.text
        met |= set(kept.tolist())
    assert met == {True, False}


@pytest.mark.parametrize("seed", tiers.seeds(6))
def test_slices_of_columns_are_filtered_as_their_rows_are(seed: int) -> None:
    rng = random.Random(seed)
    rows = [random_properties(rng) for _ in range(70)]
    for compiled in compiled_ones(rng, 40):
        columns = columns_of(rows, compiled.names)
        sliced = {name: column.slice(9, 50) for name, column in columns.items()}
        expected = [matches(compiled.tree, row) for row in rows[9:59]]
        assert compiled.keep(sliced, 50).tolist() == expected, compiled.text


def test_every_value_is_the_same_number_in_both() -> None:
    rows = [{"a": left, "b": right} for left in VALUES for right in VALUES]
    columns = columns_of(rows, ("a", "b"))
    literals = ("5", "0", "2147483647", "2147483648", "9007199254740992.0", "1.5", "b")
    for text in [f"a {symbol} {literal}" for symbol in ("=", "<", ">=") for literal in literals]:
        compiled = compile_filter(text)
        expected = [matches(compiled.tree, row) for row in rows]
        assert compiled.keep(columns, len(rows)).tolist() == expected, text


def test_doubles_that_arrow_parses_are_exactly_those_that_the_plain_parser_gives() -> None:
    """The suffix keeps the other side of each comparison from Arrow."""
    rng = random.Random(5)
    forms = ("{!r}", "{:.24f}", "{:.17e}", "{:.0f}", "{:.20e}")
    literals = [
        rng.choice(forms).format(rng.uniform(-1, 1) * 10 ** rng.randrange(18))
        for _ in range(20_000)
    ]
    tails = ("", ".0", ".0000000000000001")  # at, and a little above, the middle of two doubles
    halves = [f"{2**53 + 2 * rng.randrange(2**40) + 1}{rng.choice(tails)}" for _ in range(5_000)]
    rows = [{"a": text, "b": f"{float(text)!r}d"} for text in literals + halves]
    kept = compile_filter("a >= b AND a <= b").keep(columns_of(rows, ("a", "b")), len(rows))
    assert kept.all(), [rows[at] for at in np.flatnonzero(~kept)[:5]]


@pytest.mark.parametrize(
    "text", ["a = 5", "1 = 1", "a IS NULL", "a BETWEEN b AND 5", "a IN ('x') OR NOT a", "NULL"]
)
def test_no_messages_give_an_empty_mask(text: str) -> None:
    compiled = compile_filter(text)
    assert compiled.keep(columns_of([], compiled.names), 0).tolist() == []


@pytest.mark.parametrize("seed", tiers.seeds(40))
def test_properties_by_name_are_those_of_the_reference_codec(seed: int) -> None:
    data, starts = random_log(seed, 40)
    buf = np.frombuffer(data, np.uint8)
    headers, whole = read_headers(buf, np.array(starts, np.int64))
    assert whole.all()
    names = ("TAGS", "k", "KEYS", "nowhere", "a", "größe", "�", "UNIQ_KEY")
    found = property_values(buf, headers, names)
    assert list(found) == list(names)
    parsed = [dict(decode_record(data, at).properties) for at in starts]
    for name, column in found.items():
        column.validate(full=True)
        assert column.type == pa.string()
        assert column.to_pylist() == [properties.get(name) for properties in parsed], name


@pytest.mark.parametrize("name", ["edges", "basic", "v49"])
def test_properties_by_name_are_those_that_rocketmq_parsed(name: str, tmp_path: Path) -> None:
    root = goldens.unpack(name, tmp_path)
    segment = min((root / "commitlog").iterdir())
    data, base = np.fromfile(segment, np.uint8), int(segment.name)
    every = goldens.lines(name, "expected")
    rows = [row for row in every if base <= row["physicalOffset"] < base + len(data)]
    headers, _ = read_headers(data, np.array([row["physicalOffset"] - base for row in rows]))
    names = sorted({key for row in rows for key in row["properties"]})
    assert len(names) > 3
    for key, column in property_values(data, headers, names).items():
        assert column.to_pylist() == [row["properties"].get(key) for row in rows], key
