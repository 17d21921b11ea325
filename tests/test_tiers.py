"""The tables of tiers name cases that there are: a renamed one would silently run nowhere."""

from __future__ import annotations

import pytest

import tiers


def test_the_tables_name_cases_of_the_files_that_run(request: pytest.FixtureRequest) -> None:
    if any("::" in argument for argument in request.config.args):
        pytest.skip("single tests were asked for")
    stale = request.config.stash[tiers.STALE]
    assert not stale, "repeat `make tiers`, or name the cases as they are called now"
