"""Offsets of streams: what checkpoints hold."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.selection import parse_selection
from rmqstore.read.last_record import LastRecord
from rmqstore.source.stream_offset import StreamOffset

# Never to be changed: checkpoints of users hold it.
VERSION_1 = (
    '{"version": 1, "queues": {'
    '"TopicA": {"broker-a": {"0": 23, "2": 5, "10": 7}, "broker-b": {"0": 1}}, '
    '"TopicB": {"broker-a": {"0": 0}}}, '
    '"log": {"broker-a": {"physicalOffset": 4711, "storeTimestamp": 1700000000000}}}'
)
OFFSET = StreamOffset(
    {
        ("broker-b", "TopicA", 0): 1, ("broker-a", "TopicA", 10): 7, ("broker-a", "TopicA", 2): 5,
        ("broker-a", "TopicB", 0): 0, ("broker-a", "TopicA", 0): 23,
    },
    {"broker-a": LastRecord(4711, 1_700_000_000_000)},
)  # fmt: skip


def test_offsets_are_written_and_read_as_version_1_and_may_be_starting_offsets() -> None:
    assert json.dumps(OFFSET.json()) == VERSION_1
    assert StreamOffset.of_json(json.loads(VERSION_1)) == OFFSET
    selection = parse_selection(starting_offsets=json.dumps(json.loads(VERSION_1)["queues"]))
    assert selection.start.offsets == OFFSET.queues


def test_queues_that_are_not_followed_keep_their_marks() -> None:
    offset = dataclasses.replace(OFFSET, left={("broker-a", "TopicA", 10): LastRecord(23, 1_700)})
    stored = json.loads(json.dumps(offset.json()))
    assert stored["left"] == {
        "TopicA": {"broker-a": {"10": {"physicalOffset": 23, "storeTimestamp": 1_700}}}
    }
    assert StreamOffset.of_json(stored) == offset


def test_what_is_not_an_offset_of_ours_or_of_a_newer_release_is_refused() -> None:
    for stored in (
        {},
        {"version": 1},
        {"topic": {"0": 3}},
        {**json.loads(VERSION_1), "queues": []},
    ):
        with pytest.raises(OptionError, match="checkpointLocation"):
            StreamOffset.of_json(stored)
    with pytest.raises(UnsupportedFeatureError, match=r"version 2.*knows version 1"):
        StreamOffset.of_json({"version": 2, "queues": {}})
