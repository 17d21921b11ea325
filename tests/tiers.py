"""Which cases each tier of tests runs.

``make test-core``, ``make test`` and ``make test-all`` each run what the one before runs, and more;
``make test-slow`` runs what these leave out. A case that is marked ``slow`` says so beside the
test: it belongs to a long table of which the others take a sample. Which of the others are too
long for the two fast tiers is measured: ``tiers.toml`` names, of each test with such cases, those
that the tier does run, by their numbers in the order of collection. ``make tiers`` measures anew.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

# What needs a JVM or a browser; conftest.py says which of it shares one.
HEAVY = ("spark", "interop", "browser")
TABLE = Path(__file__).with_name("tiers.toml")
# The markers of what a tier leaves out, each with its part of the table.
MARKERS = {"thorough": "test", "medium": "test-core"}
# What `make test` asks the real RocketMQ 5.3.3: whether it serves what we write, repair, rebuild
# and copy, whether we read what it writes meanwhile and what it serves, and whether both answer
# alike.
REPAIRED = "test_the_real_store_finds_nothing_to_recover_in_what_we_repaired"
SMOKE = {
    "test_copied_store.py::test_the_copy_of_a_crashed_store_is_served[crash-5.3.3]",
    "test_live_brokers.py::test_a_broker_serves_what_its_store_holds[basic]",
    "test_live_store.py::test_a_store_is_read_while_its_broker_appends[queue]",
    "test_live_store.py::test_max_offsets_are_those_of_the_running_store",
    "test_lookup.py::test_every_key_is_answered_as_the_real_store_does_while_it_appends[1]",
    "test_other_queues.py::test_the_real_store_serves_batch_queues_and_goes_on[rocketmq-append]",
    "test_other_queues.py::test_the_real_store_serves_light_queues_and_goes_on[rocketmq-rebuild]",
    "test_properties.py::test_damaged_property_strings_are_read_as_rocketmq_reads_them[rocketmq]",
    "test_rebuilt_store.py::test_the_real_store_serves_every_other_message_of_a_queue_with_a_gap",
    "test_selectors.py::test_hash_chooses_as_the_real_selector[3]",
    "test_signatures.py::test_a_request_is_signed_as_by_its_own_client[0]",
    "test_sql92.py::test_expressions_by_hand_give_what_the_real_filter_gives",
    "test_sql92.py::test_random_expressions_give_what_the_real_filter_gives[0]",
    "test_traces.py::test_traces_equal_those_of_rocketmq[sample]",
    "test_written_store.py::test_the_real_store_serves_what_we_wrote_and_goes_on[5.3.3]",
    "test_written_store.py::test_we_append_to_what_the_real_store_wrote[rocketmq-basic]",
    f"test_written_store.py::{REPAIRED}[rocketmq-crash]",
}
# Another one each night, so that over time the tests see what no single run can.
FIRST_SEED = int(os.environ.get("SEED", "0"))


# Names in ``SMOKE`` and ``tiers.toml`` that no case of this run has; ``test_tiers.py`` asks.
STALE = pytest.StashKey[list[str]]()


def mark(items: Iterable[pytest.Item]) -> list[str]:
    """Mark the cases that the fast tiers leave out.

    Returns:
        The names in ``SMOKE`` and ``tiers.toml`` that belong to a file of these cases, or to none,
        and that no case has.
    """
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    numbers: dict[str, int] = {}
    smoke = dict.fromkeys(SMOKE, 0)
    files = set()
    for item in items:
        name = name_of(item.nodeid)
        number = numbers.get(name, 0)
        numbers[name] = number + 1
        files.add(name.partition("::")[0])
        if item.get_closest_marker("interop"):
            case = f"{item.path.name}::{item.name}"
            if case in smoke:
                smoke[case] += 1
            else:
                item.add_marker("thorough")
        for marker, tier in MARKERS.items():
            kept = table[tier].get(name)
            if kept is not None and number not in kept:
                item.add_marker(marker)
    named = [
        (f"interop/{case.partition('::')[0]}", f"SMOKE: {case}")
        for case, count in smoke.items()
        if count != 1
    ]
    named += [
        (name.partition("::")[0], f"{TABLE.name}, {tier}: {name} {kept}")
        for tier, tests in table.items()
        for name, kept in tests.items()
        if max(kept, default=0) >= numbers.get(name, 0)
    ]
    return [text for file, text in named if file in files or not (TABLE.parent / file).exists()]


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
