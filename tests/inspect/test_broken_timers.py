"""Of broken timer files `verify` says what the real RocketMQ then did with them, case by case."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import broken_stores
import rmqstore
import store_builder as build
from broken_stores import Case, findings
from goldens import Golden
from read.lookup.test_pending import DELAY, on_its_way
from rmqstore.errors import Finding
from rmqstore.format.layout import TIMER_SLOT, TIMER_SLOTS
from rmqstore.format.topics import TIMER_TOPIC
from rmqstore.inspect.remedies import by_kind
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.config_files import table_of

TRUTH = broken_stores.truth("timers")
UNDELIVERED = re.compile(r"never delivers queue offsets? ([\d, to]+)$")


def undelivered(found: list[Finding]) -> list[list[int]]:
    """Return the queue offsets in the timer topic that the texts name, as spans."""
    runs = []
    for one in found:
        for text in UNDELIVERED.findall(one.text):
            for run in text.split(", "):
                first, _, last = run.partition(" to ")
                runs.append([int(first), int(last or first) + 1])
    return runs


@pytest.mark.parametrize("state", broken_stores.STATES)
def test_it_says_what_the_real_broker_does(
    golden_store: Golden, tmp_path: Path, state: str
) -> None:
    cases = [case for case in TRUTH if case.state == state]
    for number, case in enumerate(cases):
        real, root = TRUTH[case], tmp_path / str(number)
        found = findings(golden_store("timers"), case, root)
        (root / "timerwheel").unlink(missing_ok=True)  # 37 MB each
        texts = [one.text for one in found]
        assert any("does not start" in text for text in texts) == (not real["starts"]), case
        if not real["starts"]:
            continue
        if case.damage == "renamed":  # what is read then is as chance has it
            assert any("is not a multiple of 5,216" in text for text in texts), case
            continue
        in_circle = any("in a circle" in text for text in texts)
        assert in_circle == real.get("stops", False), case
        if not in_circle:
            assert undelivered(found) == real["lost"], case
        assert not real["lost"] or {one.part for one in found} == {"timer"}, case


def test_a_whole_one_has_no_findings(golden_store: Golden) -> None:
    for name in ("timers", "live", "v55-live-lite", "v55-live-rocksdb"):
        with rmqstore.open(golden_store(name)) as store:
            assert [one for one in verify(store) if one.part == "timer"] == []


def test_the_second_is_named_from_which_on_a_broker_reads_in_a_circle(
    golden_store: Golden, tmp_path: Path
) -> None:
    case = Case("timers", "closed", "timerlog", "newest", "missing")
    (found,) = findings(golden_store("timers"), case, tmp_path / "s")
    assert found.text == (
        "a broker that starts before 2026-11-28 02:51:56 UTC reads the timer log in a circle from "
        "then on, until its memory is full, and delivers no timed message any more"
    )
    ((kind, remedy, _),) = by_kind([found])
    assert (kind, remedy.severity) == ("timer", "high")
    assert "timerlog, timerwheel and config/timercheck" in remedy.advice


def test_a_slot_of_a_second_that_no_calendar_has_is_named_by_its_number(tmp_path: Path) -> None:
    second = 10**12
    due = build.properties({"TIMER_OUT_MS": f"{second}000", "REAL_TOPIC": "T"})
    root = build.filled([build.Record(topic=TIMER_TOPIC, properties=due)]).write(tmp_path / "s")
    slots = np.zeros(TIMER_SLOTS, TIMER_SLOT)
    slots[second % TIMER_SLOTS] = (second, 0, 52, 1, 0)
    (root / "timerwheel").write_bytes(slots.tobytes())
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "timercheck").write_bytes((1000).to_bytes(8) + bytes(40))
    with rmqstore.open(root) as store:
        (found,) = [one for one in verify(store) if one.part == "timer"]
    assert f"starts before {second}000 ms after 1970 reads the timer log in a circle" in found.text


def test_a_message_that_was_delivered_at_once_needs_no_slot(
    golden_store: Golden, tmp_path: Path
) -> None:
    case, root = Case("timers", "closed", "timerlog", "first", "missing"), tmp_path / "s"
    broken_stores.make(golden_store("timers"), case, root)
    with rmqstore.open(root, mode="a") as writer:
        row = {"topic": ["Timed"], "body": [b"7"], "msgId": [f"{7:032X}"]}
        writer.append(pa.table(row | {"body": pa.array(row["body"], pa.binary())}))
    with rmqstore.open(root) as store:
        found = [one for one in verify(store) if one.part == "timer"]
    assert undelivered(found) == [[0, 7], [8, 100]]


def test_what_is_due_before_the_second_that_is_noted_as_next_is_never_delivered(
    copied: Golden,
) -> None:
    """RocketMQ 5.3.3 was tried with notes of some seconds later, and with one of the next year."""
    root = copied("timers")
    note = root / "config/timercheck"
    stored = note.read_bytes()
    for later, lost in ((15_000, [[20, 100], [120, 140]]), (10**10, [[0, 260]])):
        note.write_bytes((int.from_bytes(stored[:8]) + later).to_bytes(8) + stored[8:])
        with rmqstore.open(root) as store:
            assert undelivered([*verify(store)]) == lost


@pytest.mark.parametrize("more", [500, None])
def test_delayed_messages_that_a_broker_takes_for_delivered_are_named(
    copied: Golden, caplog: pytest.LogCaptureFixture, more: int | None
) -> None:
    """RocketMQ 5.3.3 was tried: without the table it delivers all of them, some a second time."""
    root = copied("live")
    path = root / "config/delayOffset.json"
    levels = table_of(path.read_bytes())["offsetTable"]
    text = json.dumps({"offsetTable": {level: levels[level] + (more or 0) for level in levels}})
    for name in (path, path.with_name(f"{path.name}.bak")):
        name.write_text(text if more else "")
    with rmqstore.open(root) as store:
        found = [one for one in verify(store) if one.part == "timer"]
    assert len(found) == (14 if more else 0)  # levels 5 to 18
    assert all("never delivers" in one.text for one in found)
    assert ("delivers 19 delayed messages again" in caplog.text) == (more is None)


@pytest.mark.parametrize(("offset", "n_findings"), [(1, 0), (2, 1)])
def test_an_offset_at_the_end_of_its_level_is_that_of_a_broker_that_has_delivered_all(
    tmp_path: Path, offset: int, n_findings: int
) -> None:
    root = build.filled([on_its_way("A", DELAY, DELAY="1")]).write(tmp_path / "s")
    (root / "config").mkdir()
    (root / "config/delayOffset.json").write_text(f'{{"offsetTable":{{1:{offset}}}}}')
    with rmqstore.open(root) as store:
        assert len([one for one in verify(store) if one.kind == "delay"]) == n_findings
