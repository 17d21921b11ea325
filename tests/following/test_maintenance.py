"""What a follower does beside the stream: stops, kinds of queues, times, rates and metrics."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from following.fake_master import BATCH_TOPIC, FakeMaster, log_of
from following.followers import TIMING, Following, follow_once, require_exact, wait_for
from following.replicas import TICK, after, asking, decide, streaming
from ports import free_ports
from rmqstore.errors import (
    CorruptRecordError,
    OptionError,
    StoreStateError,
    UnsupportedFeatureError,
    install,
)
from rmqstore.remoting import Address
from rmqstore.replica import events
from rmqstore.replica.broker import TopicKinds
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.cluster import ClusterProgress, FollowMetrics
from rmqstore.replica.events import Question, Ticked
from rmqstore.replica.live_state import Phase, wait_of
from rmqstore.replica.settings import FollowSettings, Timing
from rmqstore.replica.state import FollowProgress, follow_status
from store_builder import Record


def test_the_begin_of_the_log_is_known_between_two_heartbeats() -> None:
    state = asking(streaming(now=1.0), Question.BOUNDS)
    assert state.link.agreed_low == 0
    reported = events.BoundsReported(LogBounds(1 << 14, 1 << 20), 0)
    state, _ = decide(state, 2.0, reported, Question.BOUNDS)
    assert state.link.agreed_low == 0  # of the same broker, whoever has answered since
    state, _ = decide(state, 3.0, events.Received(0, 100))
    assert state.link.agreed_low == 1 << 14
    state, _ = after(state, 4.0, events.Lost("closed"), events.Written(100, 0))
    state, _ = decide(state, 99.0, TICK)
    facts = state.link.newest
    assert facts is not None
    answered = events.Answered(facts, state.link.source)
    state, _ = decide(state, 100.0, answered, Question.FACTS)
    assert state.link.agreed_low is None


def test_an_answer_about_the_end_is_old_once_more_has_come() -> None:
    for position, is_idle in ((100, True), (0, False)):
        state, _ = after(streaming(), 1.0, TICK, events.Received(0, 100), events.Written(100, 0))
        state = asking(state, Question.END)
        low = position // 2  # retention goes on meanwhile
        reported = events.BoundsReported(LogBounds(low, position), position)
        state, _ = decide(state, 2.0, reported, Question.END)
        assert (state.link.is_idle, state.link.served.low) == (is_idle, low)


@pytest.mark.parametrize("low", [0, 1])
def test_a_damaged_record_ends_a_copy_unless_the_log_begins_after_it(low: int) -> None:
    """A broker whose log is new sends its first file to who asks for 0."""
    damage = CorruptRecordError("the log", 0, "it is no record")
    state = asking(streaming(now=1.0).with_link(pending=damage), Question.END)
    reported = events.BoundsReported(LogBounds(low, 100), 0)
    state, _ = decide(state, 2.0, reported, Question.END)
    assert (state.phase is Phase.PAUSING) == (low > 0)


def test_a_stop_does_not_wait_for_an_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        run = Following(f"127.0.0.1:{silent.getsockname()[1]}", tmp_path / "copy")
        connection, _ = silent.accept()
        began = time.monotonic()
        run.end()
        assert time.monotonic() - began < 3  # an answer may take 5 seconds
        connection.close()


def test_a_topic_whose_kind_cannot_be_asked_is_not_guessed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, log = tmp_path / "copy", log_of(20)
    patient = replace(TIMING, silence=30.0)  # there is no other connection once nothing answers
    with FakeMaster(log) as master:
        with Following(master.address, target, timing=patient) as run:
            wait_for(lambda: run.follower.progress().queues_end == log.end)
            master.tables[21] = BATCH_TOPIC
            built = log.end
            master.answer_code = 2  # SYSTEM_BUSY at the ordinary port; the stream goes on
            log.append(Record(topic="B", body=b"1", store_timestamp=1_700_000_009_000))
            wait_for(lambda: run.follower.progress().end == log.end)
            wait_for(lambda: "kind of topic B" in caplog.text)
        state, _ = follow_status(target)
        assert (state.end, state.built, state.is_closed) == (log.end, built, False)
        assert (target / "abort").exists()
        assert not (target / "consumequeue" / "B").exists()
        master.answer_code = 0
        follow_once(master, target)
    assert (target / "batchconsumequeue" / "B").is_dir()
    assert not (target / "consumequeue" / "B").exists()
    assert follow_status(target)[0].is_closed


def test_a_topic_that_no_table_has_is_asked_for_once() -> None:
    """The log grows meanwhile, and a table is always older than what came last."""

    def save(end: int, now: float) -> list[Any]:
        nonlocal state
        state, _ = after(state, now, events.Written(end, 0), events.Flushed(end, 0))
        state, actions = decide(state, now, events.StateWritten(replace(state.copy.saved, end=end)))
        return actions

    state, _ = after(streaming(), 1.0, TICK, events.Received(0, 200))
    (build,) = [each for each in save(100, 2.0) if isinstance(each, events.Build)]
    state, actions = decide(state, 3.0, events.Built(0, 40, frozenset({"gone"}), 0.1))
    asked = [each.asked.question for each in actions if isinstance(each, events.Ask)]
    assert asked == [Question.TABLES]
    save(200, 4.0)
    facts = state.link.newest
    assert facts is not None
    answer = events.Answered(facts._replace(asked_at=3.0), None)
    state, (again,) = decide(state, 5.0, answer, Question.TABLES)
    kinds = TopicKinds(frozenset(), frozenset({"gone"}))
    assert again == build._replace(kinds=kinds, is_far=True)  # what came meanwhile is built next
    state, (again,) = decide(state, 6.0, events.Built(0, 60, frozenset({"gone too"}), 0.1))
    assert isinstance(again, events.Build)  # the table is newer than this part of the log
    state, actions = decide(state, 7.0, events.Built(100, 100, frozenset(), 0.1))
    assert not actions  # building rests for as long as it took
    _, actions = decide(state, 7.2, TICK)
    (last,) = [each for each in actions if isinstance(each, events.Build)]
    assert (build.end, last.end) == (100, 200)


def test_the_times_suit_the_broker() -> None:
    usual = Timing()
    assert usual.adapted(5.0, 20.0) == usual
    quick = usual.adapted(1.0, 4.0)
    assert (quick.report, quick.stall) == (1.0, 2.0)
    slow = usual.adapted(30.0, 120.0)
    assert (slow.silence, slow.first_header, slow.report) == (90.0, 90.0, 4.0)


def test_the_intervals_of_the_broker_are_read(tmp_path: Path) -> None:
    log = log_of(20)
    with FakeMaster(log) as master:
        master.settings |= {"haSendHeartbeatInterval": "700", "haHousekeepingInterval": "200"}
        master.heartbeat = 0.7
        timing = replace(TIMING, report=60.0, silence=0.3, first_header=0.3)
        with Following(master.address, tmp_path / "copy", timing=timing):
            wait_for(lambda: bool(master.reports) and len(master.reports[0]) > 10)
        assert len(master.reports) == 1


@pytest.mark.parametrize("seconds", [-1.0, 0.5, float("nan")])
def test_tables_are_not_asked_for_too_often(seconds: float) -> None:
    with pytest.raises(OptionError, match="at least 1 seconds"):
        FollowSettings(tables_seconds=seconds)


def test_the_state_names_a_new_address_when_the_logs_have_agreed(tmp_path: Path) -> None:
    target, log = tmp_path / "copy", log_of(200)
    with FakeMaster(log) as master:
        follow_once(master, target)
        first = follow_status(target)[0].address
        assert first == master.address
    with FakeMaster(log_of(200, time_ms=77_000)) as wrong:
        wrong.settings["storeType"] = "defaultRocksDB"
        with pytest.raises(StoreStateError, match="another log"):
            follow_once(wrong, target, overlap=1000)
    state, _ = follow_status(target)
    assert (state.address, state.store_type) == (first, "")
    with FakeMaster(log) as moved:
        follow_once(moved, target)
        assert follow_status(target)[0].address == moved.address
    require_exact(target, log)


PROGRESS = FollowProgress(0, 100, 150, 50, 1.5, 90, 2, 1, 1_700_000_000_500, is_connected=True)


def test_metrics_are_served_and_written(tmp_path: Path) -> None:
    metrics = FollowMetrics()
    metrics.update(ClusterProgress({"a": PROGRESS}, {"bad": "why"}))
    port = free_ports(1)[0]
    metrics.serve(Address("127.0.0.1", port))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    for line in (
        'rmqstore_follow_up{broker="a"} 1.0',
        'rmqstore_follow_up{broker="bad"} 0.0',
        'rmqstore_follow_connected{broker="a"} 1.0',
        'rmqstore_follow_lag_bytes{broker="a"} 50.0',
        'rmqstore_follow_lag_seconds{broker="a"} 1.5',
        'rmqstore_follow_cuts_total{broker="a"} 1.0',
        'rmqstore_follow_source_timestamp_seconds{broker="a"} 1.7000000005e+09',
    ):
        assert line in text.splitlines()
    metrics.write(tmp_path / "follow.prom")
    assert (tmp_path / "follow.prom").read_text() == text
    with pytest.raises(StoreStateError, match="cannot be served"):
        metrics.serve(Address("127.0.0.1", port))


def test_metrics_without_the_library_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UnsupportedFeatureError, match=re.escape(install("metrics"))):
        FollowMetrics()


def test_progress_says_whether_the_broker_answers(tmp_path: Path) -> None:
    log = log_of(20)
    with FakeMaster(log) as master, Following(master.address, tmp_path / "copy") as run:
        wait_for(lambda: run.follower.progress().is_connected)
        assert abs(run.follower.progress().source_at / 1000 - time.time()) < 60
        master.settings["haListenPort"] = str(free_ports(1)[0])

        def is_gone() -> bool:
            master.cut_connections()  # one that is only just being made is cut by the next call
            return not run.follower.progress().is_connected

        wait_for(is_gone)


def test_units_that_the_state_does_not_vouch_for_are_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, target = log_of(60), tmp_path / "copy"
    with FakeMaster(log) as master:
        follow_once(master, target)
        path = target / ".rmqstore" / "follow.json"
        built = log.placed[30].physical_offset
        path.write_text(json.dumps(json.loads(path.read_text()) | {"built": built}))
        (target / "abort").write_text("")
        follow_once(master, target)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    text = f"the queues are cut at physical offset {built}: 30 units of 3 queues are removed"
    assert told == [f"{target}: {text}"]
    require_exact(target, log)


@pytest.mark.parametrize("acknowledge", ["never", "synced"])
def test_who_is_far_behind_waits_for_more_bytes_without_looking_again_and_again(
    acknowledge: str,
) -> None:
    state, _ = decide(streaming(acknowledge=acknowledge), 1.0, events.Received(0, 100))
    assert wait_of(state).seconds <= 0.005  # nobody has to wait for these
    bounds = LogBounds(0, 1 << 30)
    state = state.with_link(bounds=bounds)
    assert wait_of(state).seconds == Timing().poll


def test_the_log_is_flushed_by_time_although_the_state_is_written_more_often() -> None:
    state, _ = after(
        streaming(sync_seconds=12.0), 1.0, events.Received(0, 100), events.Written(100, 0)
    )
    flushed = []
    for now in range(1, 30):
        state, actions = decide(state, now + 0.5, events.Ticked(is_drained=False))
        flushed += [now for each in actions if isinstance(each, events.Flush)]
        for order in actions:
            if isinstance(order, events.WriteState):
                state, _ = decide(state, now + 0.6, events.StateWritten(order.saved))
    assert flushed == [12]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_a_broker_that_is_down_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with caplog.at_level(logging.DEBUG), Following(address, tmp_path / "copy") as run:
        wait_for(lambda: bool(warnings(caplog)))
        run.stop.wait(0.5)
    (told,) = warnings(caplog)
    assert address in told


def test_a_port_for_replicas_that_cannot_be_reached_is_told_once_and_again_after_a_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(20)
    with FakeMaster(log) as master:
        good = master.settings["haListenPort"]
        master.settings["haListenPort"] = str(free_ports(1)[0])
        with Following(master.address, tmp_path / "copy") as run:
            wait_for(lambda: bool(warnings(caplog)))
            run.stop.wait(0.5)
            (told,) = warnings(caplog)
            assert "no connection" in told
            master.settings["haListenPort"] = good
            wait_for(lambda: run.follower.progress().end == log.end)
            master.cut_connections()
            wait_for(lambda: len(warnings(caplog)) == 2)


def test_a_rest_earns_one_second_of_bytes() -> None:
    def paused(max_rate: int | None, *came: tuple[int, float]) -> list[float]:
        """Return how long a replica does not read after each of some bytes, given the times."""
        state, pauses = streaming(max_rate=max_rate), []
        for count, now in came:
            state, _ = decide(state, now, Ticked(is_drained=True, n_bytes=count))
            pauses.append(max(state.link.rate_due - now, 0.0))
        return pauses

    came = [(500, 0.0), (500, 0.5), (500, 3600.0), (500, 3600.0), (500, 3600.0)]
    assert paused(1000, *came) == [0.5, 0.5, 0.0, 0.0, 0.5]
    assert paused(None, (1 << 30, 0.0)) == [0.0]
