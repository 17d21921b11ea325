"""The verb follow, with a fake master."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from following.fake_master import FakeMaster, more
from following.followers import require_exact, wait_for
from rmqstore.cli import main
from store_builder import Store


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["follow", *map(str, words)])


def log_of(count: int) -> Store:
    log = Store(segment_bytes=1 << 14)
    more(log, count)
    return log


def test_a_copy_up_to_now_and_its_status(tmp_path: Path) -> None:
    log, target = log_of(200), tmp_path / "copy"
    with FakeMaster(log) as master:
        done = run(master.address, target, "--once", "--json")
        assert done.exit_code == 0, done.output
        progress = json.loads(done.stdout.splitlines()[-1])
        assert (progress["end"], progress["bytes_behind"]) == (log.end, 0)
    require_exact(target, log)
    status = json.loads(run("--status", target, "--json").stdout)
    assert (status["broker"], status["end"], status["is_running"]) == ("b", log.end, False)
    assert "broker 'b' of cluster 'C'" in run("--status", target).stdout


def test_a_signal_ends_it_with_a_closed_store(tmp_path: Path) -> None:
    log, target = log_of(200), tmp_path / "copy"
    with FakeMaster(log) as master:
        process = subprocess.Popen(
            [sys.executable, "-m", "rmqstore", "follow", master.address, str(target)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_for(lambda: len(master.reports) == 1 and len(master.reports[0]) > 1)
        assert "running" in run("--status", target).stdout
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        process.communicate()
    require_exact(target, log)


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with FakeMaster(log_of(3)) as master:
        address = master.address
        master.settings["brokerRole"], master.version = "SYNC_MASTER", "V4_9_8"
        refused = run(address, tmp_path / "copy", "--once")
        assert refused.exit_code == 2
        assert "allow it with --allow-sync-master" in refused.stderr
    lost = run(address, tmp_path / "copy", "--no-loop")
    assert lost.exit_code == 1
    assert lost.stderr.startswith("lost: ")
    assert run(address).exit_code == 2
    assert run("--status", tmp_path / "copy", tmp_path).exit_code == 2
    assert run(address, tmp_path / "copy", "--access-key", "a").exit_code == 2
    assert run(address, tmp_path / "copy", "--tls-ca", tmp_path / "none").exit_code == 2
    for options in (["--tls-any-host"], ["--tls-key", "k"], ["--tls", "--tls-key", "k"]):
        refused = run(address, tmp_path / "copy", "--no-loop", *options)
        assert refused.exit_code == 2
        assert "needs" in refused.stderr
