"""Which cases of a long table the normal tier takes; the slow tier takes the rest, or all."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

import pytest

# Another one each night, so that over time the tests see what no single run can.
FIRST_SEED = int(os.environ.get("SEED", "0"))


def seeds(count: int) -> range:
    """Return so many seeds of random cases, from the environment variable SEED on."""
    return range(FIRST_SEED, FIRST_SEED + count)


def sampled(normal: int, every: int) -> list[Any]:
    """Return how much of its table a test takes: a sample in the normal tier, all in the slow."""
    return [
        pytest.param(normal, id="sample"),
        pytest.param(every, id="every", marks=pytest.mark.slow),
    ]


def split(cases: Iterable[Any], normal: int) -> list[Any]:
    """Return the cases of a table; those after the first ``normal`` belong to the slow tier."""
    listed = list(cases)
    return [
        *listed[:normal],
        *(pytest.param(case, marks=pytest.mark.slow) for case in listed[normal:]),
    ]


def spread(step: int, *tables: Iterable[Any]) -> list[Any]:
    """Return all combinations of tables; all but every ``step``-th belong to the slow tier.

    Every value still comes up if ``step`` does not divide the length of the last table.
    """
    every = enumerate(itertools.product(*tables))
    return [
        pytest.param(*case, marks=pytest.mark.slow if number % step else ())
        for number, case in every
    ]
