"""Topics by pattern: the names that a pattern gives, and the expression that stands for it."""

from __future__ import annotations

import re

import pytest

from rmqstore.errors import OptionError
from rmqstore.format.topics import SYSTEM_TOPICS, is_system_topic, system_topic_pattern
from rmqstore.query.selection import match_topics, nearest_topics, regular_expression

KNOWN = ["%DLQ%g", "%RETRY%g", "Orders", "Orders_EU", "SCHEDULE_TOPIC_XXXX", "X|y", "c_REPLY_TOPIC"]


@pytest.mark.parametrize("with_system", [False, True])
@pytest.mark.parametrize(
    "names",
    [["Orders"], ["Orders*"], ["?rders", "X|y"], ["*"], ["O*", "%DLQ%g"], ["[OX]*"]],
    ids=str,
)
def test_a_pattern_and_its_expression_mean_the_same(names: list[str], with_system: bool) -> None:
    expression = regular_expression(names, include_system_topics=with_system)
    matching = {topic for topic in KNOWN if re.fullmatch(expression, topic)}
    chosen = match_topics(names, KNOWN, include_system_topics=with_system)
    assert set(chosen) == matching
    assert len(set(chosen)) == len(chosen)


def test_a_pattern_matches_system_topics_only_if_they_are_included() -> None:
    with pytest.raises(OptionError, match="'%\\*' matches only system topics"):
        match_topics(["%*"], KNOWN, include_system_topics=False)
    assert match_topics(["%*"], KNOWN, include_system_topics=True) == ("%DLQ%g", "%RETRY%g")


def test_names_are_taken_as_they_are() -> None:
    assert match_topics(["Later", "Or*"], KNOWN, include_system_topics=False) == (
        "Later", "Orders", "Orders_EU",
    )  # fmt: skip
    with pytest.raises(OptionError, match="'Later\\*' matches no topic"):
        match_topics(["Later*"], KNOWN, include_system_topics=False)


@pytest.mark.parametrize("topic", [*KNOWN, *sorted(SYSTEM_TOPICS), "rmq_sys_x", "%LMQ%a", "TBW"])
def test_the_expression_of_system_topics(topic: str) -> None:
    assert bool(re.fullmatch(system_topic_pattern(), topic)) == is_system_topic(topic)


def test_an_unknown_topic_is_told_from_those_there_are() -> None:
    assert nearest_topics(["Order"], KNOWN) == f"it has: {', '.join(KNOWN)}"
    assert nearest_topics(["Order"], []) == "it has: none"
    many = [f"Orders{number}" for number in range(16_000)]
    assert nearest_topics(["Orders9999x"], many).startswith(
        "it has 16,000 topics, which the view topics lists; the nearest: Orders9999, "
    )
    assert nearest_topics(["something else"], many) == (
        "it has 16,000 topics, which the view topics lists"
    )
    assert nearest_topics(["x"], many, "consumer groups").endswith("which the view groups lists")
    assert nearest_topics(["x"], many, listed="topics()").endswith("which topics() lists")
