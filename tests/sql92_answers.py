"""What SQL92 filters say of messages, RocketMQ's and ours, a letter for each message.

It is t for TRUE, f for FALSE, n for null and x where the filter throws. An expression that is
refused has no answer. ``golden/sql92.json.xz`` holds those of RocketMQ 5.3.3; see
``interop/test_sql92.py``.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import goldens
from rmqstore.errors import OptionError
from rmqstore.query.sql92_filter import compile_filter
from rmqstore.query.sql92_tree import IsNull, Not

Properties = dict[str, str]


class Answered(NamedTuple):
    rows: list[Properties]
    answers: dict[str, str | None]  # by expression


def recorded() -> dict[str, Answered]:
    """Return what RocketMQ's filter answered, by the name of the case."""
    with lzma.open(goldens.FOLDER / "sql92.json.xz", "rt", encoding="utf-8") as file:
        return {name: Answered(*case) for name, case in json.load(file).items()}


def columns_of(rows: list[Properties], names: Iterable[str]) -> dict[str, pa.Array]:
    return {name: pa.array([row.get(name) for row in rows], pa.string()) for name in names}


def ours(text: str, rows: list[Properties]) -> str | None:
    try:
        compiled = compile_filter(text)
    except OptionError:
        return None
    columns, letters = columns_of(rows, compiled.names), np.full(len(rows), "x")
    for letter, tree in (
        ("t", compiled.tree),
        ("f", Not(compiled.tree)),
        ("n", IsNull(compiled.tree)),
    ):
        letters[replace(compiled, tree=tree).keep(columns, len(rows))] = letter
    return "".join(letters)
