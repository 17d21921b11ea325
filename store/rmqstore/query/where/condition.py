"""Comparisons joined by AND and OR: which rows meet them, and what they leave of a read.

NOT does not stand in the tree: it is moved into the comparisons as the tree is made. So a row that
SQL neither accepts nor rejects, for a null, need not be distinguished from one that it rejects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.query.conditions import NO_PRUNING, Pruning
from rmqstore.query.where.comparison import Comparison


@dataclass(frozen=True, slots=True)
class Joined:
    """Conditions that all hold (AND), or one of which holds (OR); at least one."""

    by: Literal["AND", "OR"]
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A part of a pyarrow expression that only pyarrow can compute. It leaves nothing out."""


Condition: TypeAlias = Comparison | Joined | Unknown


def negated(condition: Condition) -> Condition:
    """Return the condition that is true exactly where another one is false."""
    if isinstance(condition, Joined):
        parts = tuple(map(negated, condition.parts))
        return Joined("OR" if condition.by == "AND" else "AND", parts)
    return condition if isinstance(condition, Unknown) else condition.negated()


def pruning_of(condition: Condition) -> Pruning:
    """Return what a condition leaves of a read."""
    if isinstance(condition, Joined):
        join = Pruning.met if condition.by == "AND" else Pruning.joined
        return reduce(join, map(pruning_of, condition.parts))
    return NO_PRUNING if isinstance(condition, Unknown) else condition.pruning()


def comparisons(condition: Condition) -> Iterator[Comparison]:
    """Yield every comparison of a condition."""
    if isinstance(condition, Joined):
        for part in condition.parts:
            yield from comparisons(part)
    elif isinstance(condition, Comparison):
        yield condition


def mask_of(condition: Condition, batch: pa.RecordBatch) -> pa.Array:
    """Return which rows meet a condition without unknown parts, boolean (n,) without nulls."""
    if isinstance(condition, Joined):
        join = pc.and_ if condition.by == "AND" else pc.or_
        return reduce(join, (mask_of(part, batch) for part in condition.parts))
    assert isinstance(condition, Comparison)
    return condition.mask(batch.column(condition.column))
