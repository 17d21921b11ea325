"""Which messages are chosen: from options to queues and bounds, and errors that name the option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rmqstore
import store_builder as build
from reading import by_queue, offsets, read
from rmqstore import OffsetOutOfRangeError, OptionError
from rmqstore.query.selection import EARLIEST, LATEST, parse_selection, parse_tags


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of topics A (queues 0, 1), B, %RETRY%g; message n of a queue has time T0 + 10 n."""
    store = build.Store()
    for number in range(12):
        for topic, queue_id in (("A", 0), ("A", 1), ("B", 0), ("%RETRY%g", 0)):
            store.append(
                build.Record(topic=topic, queue_id=queue_id, store_timestamp=build.T0 + 10 * number)
            )
    path = store.write(tmp_path_factory.mktemp("selection") / "s")
    build.write_config(
        path, topics=["A", "B", "NoQueues"], offsets={"A@g": {0: 5, 1: 12}, "B@h": {0: 3}}
    )
    return path


def _numbers(root: Path, **options: Any) -> dict[str, list[int]]:
    found = read(root, columns="topic,queueId,queueOffset", include_system_topics=False, **options)
    return {
        f"{topic}-{queue}": [row["queueOffset"] for row in rows]
        for (topic, queue), rows in by_queue(found).items()
    }


ALL = list(range(12))


SELECTIONS = {
    "all user topics": ({}, {"A-0": ALL, "A-1": ALL, "B-0": ALL}),
    "a topic": ({"subscribe": "B"}, {"B-0": ALL}),
    "topics, also the system's": ({"subscribe": " B , %RETRY%g"}, {"B-0": ALL, "%RETRY%g-0": ALL}),
    "twice is once": ({"subscribe": ["B", "B"]}, {"B-0": ALL}),
    "a topic without queues": ({"subscribe": "NoQueues"}, {}),
    "any": ({"subscribe_pattern": "A|.*"}, {"A-0": ALL, "A-1": ALL, "B-0": ALL, "%RETRY%g-0": ALL}),
    "a pattern must match the whole": ({"subscribe_pattern": "RETRY"}, {}),
    "queues": ({"assign": '{"A":[1],"B":[0]}'}, {"A-1": ALL, "B-0": ALL}),
    "queues as Python": ({"assign": {"A": range(1)}}, {"A-0": ALL}),
    "offsets": (
        {
            "starting_offsets": '{"A":{"0":3,"1":-2}}',
            "ending_offsets": '{"A":{"0":5,"1":-1}}',
            "subscribe": "A",
        },
        {"A-0": [3, 4], "A-1": ALL},
    ),
    "offsets by broker": (
        {"starting_offsets": {"A": {"s": {"0": 9}, "other": {"1": 9}}}, "subscribe": "A"},
        {"A-0": [9, 10, 11], "A-1": ALL},
    ),
    "from the end": ({"starting_offsets": {"B": {0: 12}}, "subscribe": "B"}, {}),
    "of a group": ({"starting_offsets": "group:g", "subscribe": "A"}, {"A-0": ALL[5:]}),
    "of a group that has not begun all queues": (
        {"starting_offsets": "group:h", "subscribe": "B,A"},
        {"A-0": ALL, "A-1": ALL, "B-0": ALL[3:]},
    ),
    "times": (
        {"starting_timestamp": build.T0 + 11, "ending_timestamp": build.T0 + 40, "subscribe": "B"},
        {"B-0": [2, 3]},
    ),
    "by-timestamp before offsets": (
        {
            "starting_offsets_by_timestamp": {"B": {"0": build.T0 + 95}},
            "starting_offsets": {"B": {"0": 1}},
            "subscribe": "B",
        },
        {"B-0": [10, 11]},
    ),
    "ends by-timestamp, of one broker": (
        {
            "ending_offsets_by_timestamp": {"A": {"0": build.T0 + 95, "s": {"1": build.T0}}},
            "subscribe": "A",
        },
        {"A-0": ALL[:10]},
    ),
    "timestamp before by-timestamp": (
        {
            "starting_timestamp": build.T0 + 110,
            "starting_offsets_by_timestamp": {"B": {"0": build.T0}},
            "subscribe": "B",
        },
        {"B-0": [11]},
    ),
    "later than all": ({"starting_timestamp": build.T0 + 111, "subscribe": "B"}, {}),
    "earlier than all": ({"ending_timestamp": 0, "subscribe": "B"}, {}),
    "from where it ends": (
        {"starting_offsets": {"B": {"0": 5}}, "ending_offsets": {"B": {"0": 5}}, "subscribe": "B"},
        {},
    ),
}


@pytest.mark.parametrize(("options", "expected"), SELECTIONS.values(), ids=SELECTIONS)
def test_selection_chooses_queues_and_bounds(
    root: Path, options: dict[str, Any], expected: dict[str, list[int]]
) -> None:
    assert _numbers(root, **options) == expected


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 48),
        ({"subscribe": "A"}, 24),
        ({"assign": {"A": [1]}}, 12),
        ({"subscribe_pattern": "[AB]"}, 36),
        ({"starting_timestamp": build.T0 + 100}, 8),
        (
            {
                "subscribe": "B",
                "starting_timestamp": build.T0 + 11,
                "ending_timestamp": build.T0 + 40,
            },
            2,
        ),
    ],
)
def test_scan_by_log_is_filtered_by_topics_and_times(
    root: Path, options: dict[str, Any], count: int
) -> None:
    found = offsets(read(root, scan="commitlog", **options))
    assert (len(found), found) == (count, sorted(found))


REFUSED = {
    "two selections": ({"subscribe": "A", "assign": {"A": [0]}}, "subscribe and assign"),
    "two others": ({"subscribe": "A", "subscribe_pattern": "A"}, "subscribe and subscribe_pattern"),
    "empty topic": ({"subscribe": "A,,B"}, "subscribe"),
    "no topic": ({"subscribe": []}, "subscribe"),
    "no pattern": ({"subscribe_pattern": "("}, "subscribe_pattern"),
    "no JSON": ({"assign": "A"}, "assign"),
    "no table": ({"assign": '["A"]'}, "assign"),
    "a topic twice": ({"assign": '{"A":[0],"A":[1]}'}, "assign"),
    "an offset of no queue that is read": (
        {"assign": {"A": [0]}, "starting_offsets": {"A": {"1": 5}}},
        "starting_offsets: A-1 is not",
    ),
    "a time of no topic that is read": (
        {"subscribe": "A", "ending_offsets_by_timestamp": {"B": {"0": "ms:5000"}}},
        "ending_offsets_by_timestamp: B-0 is not",
    ),
    "a queue twice": (
        {"starting_offsets": '{"A":{"0":1,"00":2}}'},
        "starting_offsets:.* stands for both 1 and 2",
    ),
    "no list": ({"assign": '{"A":0}'}, "assign"),
    "no queue id": ({"assign": '{"A":["x"]}'}, "assign"),
    "a truth for a queue id": ({"assign": '{"A":[true]}'}, "assign"),
    "half a queue id": ({"assign": '{"A":[1.5]}'}, "assign"),
    "nothing to read from latest": ({"starting_offsets": "latest"}, "starting_offsets"),
    "nothing to read to earliest": ({"ending_offsets": "earliest"}, "ending_offsets"),
    "unknown word": ({"starting_offsets": "newest"}, "starting_offsets"),
    "latest for a queue": ({"starting_offsets": '{"A":{"0":-1}}'}, "starting_offsets"),
    "earliest for a queue": ({"ending_offsets": '{"A":{"0":-2}}'}, "ending_offsets"),
    "negative": ({"ending_offsets": '{"A":{"0":-3}}'}, "ending_offsets"),
    "null": ({"ending_offsets": '{"A":{"0":null}}'}, "ending_offsets"),
    "no queue": ({"ending_offsets": '{"A":{"x":1}}'}, "ending_offsets"),
    "no table of queues": ({"ending_offsets": '{"A":7}'}, "ending_offsets"),
    "no time": ({"starting_timestamp": "soon"}, "starting_timestamp"),
    "no month": ({"ending_timestamp": "2024-13-01"}, "ending_timestamp"),
    "no time by queue": (
        {"starting_offsets_by_timestamp": '{"A":{"0":"x"}}'},
        "starting_offsets_by_timestamp",
    ),
    "no table of times": ({"ending_offsets_by_timestamp": "1"}, "ending_offsets_by_timestamp"),
    "no strategy": (
        {"starting_offsets_by_timestamp_strategy": "guess"},
        "starting_offsets_by_timestamp_strategy",
    ),
}


@pytest.mark.parametrize(("options", "name"), REFUSED.values(), ids=REFUSED)
def test_refusal_names_the_option(options: dict[str, Any], name: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name}\b"):
        parse_selection(**options)


LACKING = {
    "unknown topic": ({"subscribe": "Nope"}, "no topic Nope"),
    "unknown queue": ({"assign": {"A": [0, 7]}}, r"A has no queue \[7\]"),
    "an offset of an unknown queue": (
        {"subscribe": "A", "starting_offsets": {"A": {"90": 1}}},
        r"A has no queue \[90\]",
    ),
    "a time of an unknown queue": (
        {"subscribe": "A", "ending_offsets_by_timestamp": {"A": {"0": "ms:5", "90": "ms:5"}}},
        r"A has no queue \[90\]",
    ),
    "unknown group": ({"starting_offsets": "group:nope"}, "'nope'"),
    "unknown column": ({"columns": "topic,nope"}, "columns.*nope"),
    "kafka": ({"columns": "kafka"}, "columns: kafka .* in reads of Spark"),
    "column twice": ({"columns": "topic,topic"}, "columns"),
    "no column": ({"columns": []}, "columns"),
    "unknown mode": ({"mode": "LENIENT"}, "mode"),
    "unknown scan": ({"scan": "index"}, "scan"),
    "offsets by log": ({"scan": "commitlog", "starting_offsets": {"A": {"0": 1}}}, "commitlog"),
    "ends by log": ({"scan": "commitlog", "ending_offsets": {"A": {"0": 1}}}, "commitlog"),
    "group by log": ({"scan": "commitlog", "starting_offsets": "group:g"}, "commitlog"),
    "end group by log": ({"scan": "commitlog", "ending_offsets": "group:g"}, "commitlog"),
    "queue's column by log": ({"scan": "commitlog", "columns": "tagsCode"}, "tagsCode"),
    "no tag": ({"tags": "||"}, "tags"),
}


@pytest.mark.parametrize(("options", "text"), LACKING.values(), ids=LACKING)
def test_scan_refuses_what_the_store_or_the_scan_does_not_have(
    root: Path, options: dict[str, Any], text: str
) -> None:
    with rmqstore.open(root) as store, pytest.raises(OptionError, match=text):
        read(store, **options)


@pytest.mark.parametrize("name", ["starting", "ending"])
@pytest.mark.parametrize("offset", [13, 1 << 40])
def test_offsets_beyond_the_queue_are_data_loss(root: Path, name: str, offset: int) -> None:
    options: dict[str, Any] = {"subscribe": "B", f"{name}_offsets": {"B": {"0": offset}}}
    with rmqstore.open(root) as store:
        with pytest.raises(OffsetOutOfRangeError, match=f"{name}_offsets.*fail_on_data_loss=False"):
            read(store, **options)
        found = read(store, fail_on_data_loss=False, **options)
    assert [row["queueOffset"] for row in found] == ([] if name == "starting" else ALL)


def test_strategy_error_refuses_a_time_that_no_message_has(root: Path) -> None:
    options: dict[str, Any] = {"subscribe": "B", "starting_offsets_by_timestamp_strategy": "error"}
    with rmqstore.open(root) as store:
        assert len(read(store, starting_timestamp=build.T0 + 110, **options)) == 1
        with pytest.raises(
            OffsetOutOfRangeError, match="starting_offsets_by_timestamp_strategy=latest"
        ):
            read(store, starting_timestamp=build.T0 + 111, **options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("", None),
        (" * ", None),
        ("A", {"A"}),
        ("A||B || C ", {"A", "B", "C"}),
        ("A || || B", {"A", "B"}),
        ("A|B", {"A|B"}),
        ("\x00A\x1f || \u00a0B\u3000", {"A", "\u00a0B\u3000"}),  # String.trim of Java
    ],
)
def test_tags_are_split_as_consumers_do(text: str | None, expected: set[str] | None) -> None:
    assert parse_tags(text) == expected


def test_numbers_for_earliest_and_latest_are_those_of_spark() -> None:
    assert (EARLIEST, LATEST) == (-2, -1)
