"""Which cases each tier of tests runs.

``make test-core``, ``make test`` and ``make test-all`` each run what the one before runs, and more;
``make test-slow`` runs what these leave out. A case that is marked ``slow`` says so beside the
test: it belongs to a long table of which the others take a sample. Which of the others are too
long for the two fast tiers is measured: ``tiers.toml`` has the seconds that all cases of a test
take, where these are more than the rest. Of such a test a tier takes a share that fits into its
seconds. Which cases these are follows from a hash of their ids, so a new parameter changes nothing
for the others, and moves no case to another tier. ``make tiers`` measures anew.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# What needs a JVM or a browser; conftest.py says which of it shares one.
HEAVY = ("spark", "interop", "browser")
TABLE = Path(__file__).with_name("tiers.toml")


class Budget(NamedTuple):
    """The seconds that a tier has for a test that takes long."""

    test: float  # for all of its cases
    case: float  # for its only case, or for one of many


# By the marker of what a tier leaves out: of `make test`, and of `make test-core`.
BUDGETS = {"thorough": Budget(1.0, 1.6), "medium": Budget(0.08, 0.1)}
# What `make test` asks the real RocketMQ 5.3.3: whether it serves what we write, repair, rebuild
# and copy, whether we read what it writes meanwhile and what it serves, and whether both answer
# alike.
REPAIRED = "test_the_real_store_finds_nothing_to_recover_in_what_we_repaired"
SMOKE = {
    "test_copied_store.py::test_a_copy_of_some_topics_and_files_is_served[5.3.3]",
    "test_live_brokers.py::test_a_broker_serves_what_its_store_holds[basic]",
    "test_live_store.py::test_a_store_is_read_while_its_broker_appends[queue]",
    "test_live_store.py::test_max_offsets_are_those_of_the_running_store",
    "test_lookup.py::test_every_key_is_answered_as_the_real_store_does_while_it_appends[1]",
    "test_other_queues.py::test_the_real_store_serves_batch_queues_and_goes_on[rocketmq-append]",
    "test_other_queues.py::test_the_real_store_serves_lmqs_and_goes_on[rocketmq-rebuild]",
    "test_properties.py::test_damaged_property_strings_are_read_as_rocketmq_reads_them[rocketmq]",
    "test_queue_choices.py::test_hash_chooses_as_the_real_selector[3]",
    "test_signatures.py::test_a_request_is_signed_as_by_its_own_client[0]",
    "test_sql92.py::test_the_real_filter_answers_as_is_recorded[by_hand]",
    "test_sql92.py::test_the_real_filter_answers_as_is_recorded[random-0]",
    "test_traces.py::test_traces_equal_those_of_rocketmq[sample]",
    "test_written_store.py::test_the_real_store_serves_every_other_message_of_a_queue_with_a_gap",
    "test_written_store.py::test_the_real_store_serves_what_we_wrote_and_goes_on[5.3.3]",
    f"test_written_store.py::{REPAIRED}[rocketmq-crash]",
}
# Another one each night, so that over time the tests see what no single run can.
FIRST_SEED = int(os.environ.get("SEED", "0"))


# Names in ``SMOKE`` and ``tiers.toml`` that no test of this run has; ``test_tiers.py`` asks.
STALE = pytest.StashKey[list[str]]()


def mark(items: Sequence[pytest.Item]) -> list[str]:
    """Mark the cases that the fast tiers leave out.

    Returns:
        The names in ``SMOKE`` and ``tiers.toml`` that belong to a file of these cases, or to none,
        and that no case has.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    smoke = dict.fromkeys(SMOKE, 0)
    for item in items:
        if item.get_closest_marker("interop"):
            case = f"{item.path.name}::{item.name}"
            if case in smoke:
                smoke[case] += 1
            else:
                item.add_marker("thorough")
        if not item.get_closest_marker("slow"):
            cases[name_of(item.nodeid)].append(item)
    named = [
        (f"interop/{case.partition('::')[0]}", f"SMOKE: {case}")
        for case, count in smoke.items()
        if count != 1
    ]
    for file, tests in tomllib.loads(TABLE.read_text(encoding="utf-8")).items():
        for test, seconds in tests.items():
            of_test = cases.get(f"{file}::{test}")
            if of_test is None:
                named.append((file, f"{TABLE.name}: {file}::{test}"))
                continue
            for marker, budget in BUDGETS.items():
                kept = chosen([item.nodeid for item in of_test], seconds, budget)
                for item in of_test:
                    if item.nodeid not in kept:
                        item.add_marker(marker)
    files = {name.partition("::")[0] for name in map(name_of, (item.nodeid for item in items))}
    return [text for file, text in named if file in files or not (TABLE.parent / file).exists()]


def chosen(cases: list[str], seconds: float, budget: Budget) -> set[str]:
    """Return the cases of a test that a tier takes.

    Args:
        cases: the ids of all of them.
        seconds: what they take together.
        budget: what the tier has for them; it takes one case at least if that is not too long.
    """
    share = budget.test / seconds
    kept = {case for case in cases if place_of(case) < share}
    if not kept and seconds / len(cases) <= budget.case:
        kept = {min(cases, key=place_of)}
    return kept


def place_of(case: str) -> float:
    """Return a number in [0, 1) that only the id of a case determines."""
    digest = blake2b(case.removeprefix("tests/").encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def name_of(nodeid: str) -> str:
    """Return the test of a case, below the folder of tests and without its parameters."""
    return nodeid.partition("[")[0].removeprefix("tests/")


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
