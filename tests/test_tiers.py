"""What fast tiers take of a test, and that the table of long tests names tests that there are."""

from __future__ import annotations

import pytest

import tiers
from tiers import Budget

CASES = [f"tests/a/test_b.py::test_c[{number}]" for number in range(1000)]


def test_the_tables_name_tests_of_the_files_that_run(request: pytest.FixtureRequest) -> None:
    if any("::" in argument for argument in request.config.args):
        pytest.skip("single tests were asked for")
    stale = request.config.stash[tiers.STALE]
    assert not stale, "repeat `make tiers`, or name the tests as they are called now"


def test_a_tier_takes_the_share_of_a_test_that_fits_into_its_seconds() -> None:
    kept = tiers.chosen(CASES, 100.0, Budget(10.0, 1.0))
    assert 70 < len(kept) < 130
    assert tiers.chosen(CASES, 100.0, Budget(200.0, 1.0)) == {*CASES}


def test_a_new_case_changes_nothing_for_the_others() -> None:
    budget = Budget(10.0, 1.0)
    kept = tiers.chosen(CASES, 100.0, budget)
    assert (
        tiers.chosen([*CASES[:500], "tests/a/test_b.py::test_c[new]", *CASES[500:]], 100.0, budget)
        >= kept
    )


@pytest.mark.parametrize(("seconds", "count"), [(1.9, 1), (2.1, 0)])
def test_one_case_is_taken_unless_it_is_too_long(seconds: float, count: int) -> None:
    (case,) = [case for case in CASES if tiers.place_of(case) > 0.9][:1]
    assert len(tiers.chosen([case], seconds, Budget(0.6, 2.0))) == count
