"""Filters answer as RocketMQ's own did; property columns hold what was parsed."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import goldens
import tiers
from equivalence.random_logs import random_log
from rmqstore.format.columns.decode import property_values
from rmqstore.format.columns.record_headers import read_headers
from rmqstore.format.record import decode_record
from rmqstore.query.sql92_filter import compile_filter
from sql92_answers import columns_of, ours, recorded

RECORDED = recorded()


@pytest.mark.parametrize("name", RECORDED)
def test_filters_answer_as_rocketmqs_did(name: str) -> None:
    rows, answers = RECORDED[name]
    for text, answer in answers.items():
        assert ours(text, rows) == answer, text


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith("random")])
def test_slices_of_columns_are_filtered_as_their_rows_are(name: str) -> None:
    rows, answers = RECORDED[name]
    texts = [text for text, answer in answers.items() if answer is not None]
    for compiled in map(compile_filter, texts[::10]):
        columns = columns_of(rows, compiled.names)
        sliced = {name: column.slice(9, 50) for name, column in columns.items()}
        whole = compiled.keep(columns, len(rows))
        assert compiled.keep(sliced, 50).tolist() == whole[9:59].tolist(), compiled.text


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
