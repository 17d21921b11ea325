"""``dump --follow``: new messages at once, and an end without a word."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import rmqstore
from rmqstore.cli import main
from rmqstore.write.writer import StoreWriter

Golden = Callable[[str], Path]
SECONDS = 60  # until a process that should end is taken for stuck


def put(writer: StoreWriter, *bodies: str) -> None:
    rows = {"topic": ["T"] * len(bodies), "queueId": [0] * len(bodies), "body": list(bodies)}
    writer.append(pa.RecordBatch.from_pydict(rows))
    writer.flush()


@contextmanager
def following(root: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``dump --follow``; it is killed in the end if it does not end itself."""
    command = [sys.executable, "-m", "rmqstore", "dump", str(root), "--follow", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    with rmqstore.create(tmp_path / "s") as opened:
        put(opened, "old 1", "old 2", "old 3")
        yield opened


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_messages_are_followed_until_a_signal(
    writer: StoreWriter, tmp_path: Path, number: signal.Signals
) -> None:
    with following(tmp_path / "s", "--last", "2") as process:
        assert [json.loads(line)["body"] for line in lines(process, 2)] == ["old 2", "old 3"]
        put(writer, "new 1")
        put(writer, "new 2")
        found = [json.loads(line) for line in lines(process, 2)]
        assert [(row["body"], row["queueOffset"]) for row in found] == [("new 1", 3), ("new 2", 4)]
        os.kill(process.pid, number)
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert (process.returncode, stdout, stderr) == (0, "", "")


@pytest.mark.usefixtures("writer")
def test_it_ends_when_nobody_reads(tmp_path: Path) -> None:
    with following(tmp_path / "s", "--last", "1") as process:
        assert json.loads(lines(process, 1)[0])["body"] == "old 3"
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(SECONDS) == 141  # although there is no new message to write
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.usefixtures("writer")
def test_rows_come_as_csv_and_as_a_table_and_up_to_a_limit(tmp_path: Path) -> None:
    columns = ("--columns", "queueId,body", "-n", "2")
    with following(tmp_path / "s", "-t", "T*", "-b", "-1h", "--format", "csv", *columns) as process:
        stdout, _ = process.communicate(timeout=SECONDS)
        assert [row["body"] for row in csv.DictReader(stdout.splitlines())] == ["old 1", "old 2"]
    table = ("-t", "T", "-i", "0", "-o", "1", "--format", "table", "--body", "hex")
    with following(tmp_path / "s", *table, *columns) as process:
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert (process.returncode, stderr) == (0, "")
    assert [line.split() for line in stdout.splitlines()] == [
        ["queueId", "bodyHex"],
        ["0", b"old 2".hex()],
        ["0", b"old 3".hex()],
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--format", "parquet"), "--format parquet has an end"),
        (("--format", "json"), "--format json has an end"),
        (("--output", "rows.jsonl"), "use > FILE"),
        (("-e", "now"), "has no end"),
        (("--scan", "commitlog"), "goes by queue"),
        (("--last", "2", "-b", "-1h"), "give one of them"),
    ],
    ids=str,
)
def test_what_cannot_be_followed_is_refused(
    golden_store: Golden, arguments: tuple[str, ...], complaint: str
) -> None:
    refused = CliRunner().invoke(main, ["dump", str(golden_store("one")), "--follow", *arguments])
    assert refused.exit_code == 2
    assert complaint in refused.stderr
