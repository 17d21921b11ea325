"""Retried and dead messages name where they come from, as brokers and clients write it."""

from __future__ import annotations

import pytest

from goldens import lines
from rmqstore.format.columns.property_decode import KnownNames, Origin, origin_of


@pytest.mark.parametrize("name", ["live", "v55-live-lite", "v55-live-rocksdb"])
def test_a_retry_that_waits_for_its_delay_is_one_of_the_group(name: str) -> None:
    delayed = [row for row in lines(name, "expected") if row["topic"] == "SCHEDULE_TOPIC_XXXX"]
    origins = [origin_of(row["topic"], row["properties"]) for row in delayed]
    waiting = [origin for origin in origins if origin is not None]
    assert len(waiting) == 4
    assert {origin[:4] for origin in waiting} == {(False, True, "CG_retry", "LiveRetry")}
    assert None in origins  # delayed messages that nobody has consumed yet


@pytest.mark.parametrize(
    ("topic", "properties", "expected"),
    [
        ("%DLQ%g", {"RETRY_TOPIC": "T"}, Origin(True, False, "g", "T", None)),
        ("%DLQ%g", {}, Origin(True, False, "g", None, None)),
        ("%DLQ%g_h+i", {}, Origin(True, False, "g_h+i", None, None)),
        # a group with underscores: a property tells that this is not POP
        ("%RETRY%g_T", {"RETRY_TOPIC": "T"}, Origin(False, False, "g_T", "T", None)),
        ("%RETRY%g+T", {}, Origin(False, False, "g", "T", None)),
        ("%RETRY%a_b+c_d", {}, Origin(False, False, "a_b", "c_d", None)),
        # dead letters of POP were sent back as messages of the retry topic
        ("%DLQ%g", {"RETRY_TOPIC": "%RETRY%g+T"}, Origin(True, False, "g", "T", None)),
        ("%DLQ%g_h", {"RETRY_TOPIC": "%RETRY%g_h_T_U"}, Origin(True, False, "g_h", "T_U", None)),
        ("%DLQ%g", {"RETRY_TOPIC": "%RETRY%g"}, Origin(True, False, "g", "%RETRY%g", None)),
        ("%DLQ%g", {"RETRY_TOPIC": "%RETRY%g_"}, Origin(True, False, "g", "%RETRY%g_", None)),
        (
            "%DLQ%g",
            {"RETRY_TOPIC": "R", "ORIGIN_MESSAGE_ID": "1", "DLQ_ORIGIN_TOPIC": "T",
             "DLQ_ORIGIN_MESSAGE_ID": "2"},
            Origin(True, False, "g", "T", "2"),
        ),
        # namespaces are part of the names
        ("%RETRY%NS%g+NS%T", {}, Origin(False, False, "NS%g", "NS%T", None)),
        ("rmq_sys_wheel_timer", {"REAL_TOPIC": "%RETRY%g", "RETRY_TOPIC": "T"},
         Origin(False, True, "g", "T", None)),
        ("rmq_sys_wheel_timer", {"REAL_TOPIC": "T"}, None),
        ("SCHEDULE_TOPIC_XXXX", {}, None),
        ("T", {"RETRY_TOPIC": "T"}, None),
        ("%RETRY%", {}, Origin(False, False, "", None, None)),
        ("%RETRY%+T", {}, Origin(False, False, "+T", None, None)),
        ("%RETRY%a+b+c", {}, Origin(False, False, "a+b+c", None, None)),
    ],
)  # fmt: skip
def test_an_origin_follows_from_the_topic_and_the_properties(
    topic: str, properties: dict[str, str], expected: Origin | None
) -> None:
    assert origin_of(topic, properties) == expected


@pytest.mark.parametrize(
    ("name", "groups", "topics", "expected"),
    [
        ("a_T", (), (), ("a", "T")),
        ("a_T", {"a_T"}, (), ("a_T", None)),  # all of it is a group
        ("a_T", {"a_T", "a"}, (), ("a", "T")),
        ("a_b_T", (), (), ("a_b_T", None)),  # nothing tells where the topic begins
        ("a_b_T", {"a_b"}, (), ("a_b", "T")),
        ("a_b_T", (), {"T"}, ("a_b", "T")),
        ("a_b_T", {"a", "a_b"}, {"T"}, ("a_b", "T")),
        ("a_b_T", {"a", "a_b"}, (), ("a_b_T", None)),
        ("a_b_T", {"a"}, {"b_T", "T"}, ("a", "b_T")),
        ("_a_", (), (), ("_a_", None)),
        ("a__b", {"a_"}, (), ("a_", "b")),
        ("a", (), (), ("a", None)),
    ],
)
def test_known_names_tell_where_the_topic_of_a_pop_retry_begins(
    name: str, groups: set[str], topics: set[str], expected: tuple[str, str | None]
) -> None:
    origin = origin_of(f"%RETRY%{name}", {}, KnownNames(groups, topics))
    assert origin is not None
    assert (origin.group, origin.topic) == expected
