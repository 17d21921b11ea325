"""The verb follow, with a fake master."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import command_line
from following.fake_master import FakeController, FakeMaster, FakeNameServer, log_of
from following.followers import require_exact, wait_for
from rmqstore.replica.cluster import FollowMetrics
from rmqstore.replica.state import follow_status
from rmqstore.storage.broker.epochs import Epoch

run = partial(command_line.run, "follow")
success = partial(command_line.success, "follow")
refusal = partial(command_line.refusal, "follow")


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rmqstore", "follow", *map(str, words)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("words", [["127.0.0.1:1"], ["--namesrv", "127.0.0.1:1"]])
def test_a_copy_in_object_storage_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(*words, "s3://stores/live", "--once", "--no-loop")
    assert "s3://stores/live: a live copy is written to a local disk only" in said
    assert not list(tmp_path.iterdir())


def test_a_copy_up_to_now_and_its_status(tmp_path: Path) -> None:
    log, target = log_of(200), tmp_path / "copy"
    with FakeMaster(log) as master:
        done = success(master.address, target, "--once", "--json")
        progress = json.loads(done.stdout.splitlines()[-1])
        assert (progress["end"], progress["bytes_behind"]) == (log.end, 0)
    require_exact(target, log)
    status = json.loads(run("--status", target, "--json").stdout)
    assert (status["broker"], status["end"], status["is_running"]) == ("b", log.end, False)
    assert "broker 'b' of cluster 'C'" in run("--status", target).stdout


def test_a_signal_ends_it_with_a_closed_store(tmp_path: Path) -> None:
    log, target = log_of(200), tmp_path / "copy"
    with FakeMaster(log) as master:
        process = started(master.address, target)
        wait_for((target / ".rmqstore" / "follow.json").exists)
        wait_for(lambda: follow_status(target)[0].end == log.end, 60)
        assert "running" in run("--status", target).stdout
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        process.communicate()
    require_exact(target, log)


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with FakeMaster(log_of(3)) as master:
        address = master.address
        master.settings["brokerRole"], master.version = "SYNC_MASTER", "V4_9_8"
        assert "allow it with --allow-sync-master" in refusal(address, tmp_path / "copy", "--once")
    lost = run(address, tmp_path / "copy", "--no-loop")
    assert (lost.exit_code, lost.stderr[:6]) == (1, "lost: ")
    for words in (
        [address], ["--status", tmp_path / "copy", tmp_path],
        [address, tmp_path / "copy", "--access-key", "a"],
        [address, tmp_path / "copy", "--tls-ca", tmp_path / "none"],
    ):  # fmt: skip
        refusal(*words)
    for options in (["--tls-any-host"], ["--tls-key", "k"], ["--tls", "--tls-key", "k"]):
        assert "needs" in refusal(address, tmp_path / "copy", "--no-loop", *options)


def test_the_status_of_a_copy_in_controller_mode(tmp_path: Path) -> None:
    log, target = log_of(40), tmp_path / "copy"
    with FakeController(log, [Epoch(3, 0)]) as master:
        run(master.address, target, "--once")
        refused = run(master.address, tmp_path / "other", "--once", "--ack", "synced")
    assert f"controller mode: epoch 3, confirm offset {log.end}" in run("--status", target).stdout
    assert refused.exit_code == 2
    assert "learner" in refused.stderr
    assert "--ack" in refused.stderr


def test_all_brokers_their_status_and_their_metrics(tmp_path: Path) -> None:
    logs = {"a": log_of(100), "b": log_of(200)}
    target, file = tmp_path / "all", tmp_path / "follow.prom"
    with (
        FakeMaster(logs["a"], name="a") as first,
        FakeMaster(logs["b"], name="b") as second,
        FakeNameServer({"a": ("C", {0: first.address}), "b": ("C", {0: second.address})}) as names,
    ):
        words = ["--namesrv", names.address, "--cluster", "C", target, "--once", "--json"]
        done = success(*words, "--metrics-file", file, "--retain", "30d", "--from", "last-file")
        second.settings["brokerName"] = "x"
        assert "error: 1 of 2 copies could not continue; b: " in refusal(*words)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    ends = {line["broker"]: line["end"] for line in lines}
    assert ends == {name: log.end for name, log in logs.items()}
    assert f'rmqstore_follow_end_offset{{broker="a"}} {float(logs["a"].end)}' in file.read_text()
    status = [json.loads(line) for line in run("--status", target, "--json").stdout.splitlines()]
    assert [(line["copy"], line["end"], line["bytes_behind"]) for line in status] == [
        (name, log.end, 0) for name, log in logs.items()
    ]
    assert "b: broker 'b' of cluster 'C'" in run("--status", target).stdout
    (target / "a" / ".rmqstore" / "follow.json").write_text("{")
    told = run("--status", target, "--json")
    assert told.exit_code == 2
    damaged, valid = (json.loads(line) for line in told.stdout.splitlines())
    assert damaged["copy"] == "a"
    assert "follow.json is damaged" in damaged["error"]
    assert (valid["copy"], valid["end"]) == ("b", logs["b"].end)
    told = run("--status", target)
    assert "b: broker 'b'" in told.stdout
    assert "a: error: " in told.stderr
    assert run("--status", target / "a").exit_code == 2


def test_the_file_of_metrics_says_that_an_error_has_ended_a_copy(tmp_path: Path) -> None:
    target, file = tmp_path / "copy", tmp_path / "follow.prom"
    with FakeMaster(log_of(100)) as master:
        address, words = master.address, ["--once", "--metrics-file", file]
        success(address, target, *words)
        assert f'rmqstore_follow_up{{broker="{address}"}} 1.0' in file.read_text()
        master.settings["brokerName"] = "other"
        assert run(address, target, *words).exit_code == 2
        assert f'rmqstore_follow_up{{broker="{address}"}} 0.0' in file.read_text()
        with FakeNameServer({"other": ("C", {0: address})}) as names:
            (tmp_path / "all").mkdir()
            target.rename(tmp_path / "all" / "other")
            assert run("--namesrv", names.address, tmp_path / "all", *words).exit_code == 2
        assert 'rmqstore_follow_up{broker="other"} 0.0' in file.read_text()


def test_metrics_that_cannot_be_written_do_not_end_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "gone" / "follow.prom"
    with FakeMaster(log_of(100)) as master:
        said = refusal(master.address, tmp_path / "copy", "--once", "--metrics-file", file)
        assert f"--metrics-file {file}: cannot be written: No such file" in said
        file.parent.mkdir()
        write, asked = FollowMetrics.write, []

        def write_once(metrics: FollowMetrics, path: Path) -> None:
            asked.append(path)
            if len(asked) > 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(metrics, path)

        monkeypatch.setattr(FollowMetrics, "write", write_once)
        done = run(master.address, tmp_path / "copy", "--once", "--metrics-file", file)
    assert done.exit_code == 0, done.output
    assert len(asked) > 1
    assert "metrics are not written: No space left" in caplog.text + done.stderr


def test_a_broker_that_has_not_answered_is_told(tmp_path: Path) -> None:
    process = started("127.0.0.1:1", tmp_path / "copy")
    try:
        assert process.stderr is not None
        assert "no connection" in process.stderr.readline()
        assert process.stderr.readline() == "the broker has not answered yet\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.communicate()


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    for words, text in (
        (["--namesrv", "h:1", "--until", "5", target], "--until: cannot be used with --namesrv"),
        (["--namesrv", "h:1", "--ha-address", "h:2", target], "--ha-address: cannot be used with"),
        (["h:1", target, "--cluster", "C"], "--cluster: cannot be used without --namesrv"),
        (["h:1", target, "--prefer-slave"], "--prefer-slave: cannot be used without --namesrv"),
        (["--namesrv", "h:1", target, target], "--namesrv takes one folder"),
        (["--namesrv", "h:1", target, "--from", "5"], "--from: an offset is of one broker only"),
        (["h:1", target, "--from", "newest"], "--from 'newest': must be earliest, last-file or"),
        (["h:1", target, "--retain", "soon"], "--retain 'soon': must be forever, mirror"),
        (["h:1", target, "--keep-for", tmp_path], "--keep-for: needs --retain"),
        (["h:1", target, "--tables-interval", "0.5"], "--tables-interval 0.5: must be 0, or at"),
        (["h:1", target, "--metrics", "9100"], "'9100' is not an address"),
        (["--status", tmp_path], "is not a copy that a follower made, and holds none"),
    ):
        assert text in refusal(*words)
    assert not target.exists()
