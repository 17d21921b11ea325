"""What is advised about findings can be done with the store that was checked."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import rmqstore
from command_line import advised_commands, run, success
from goldens import Golden
from rmqstore.errors import Finding, StoreStateError
from rmqstore.inspect.remedies import _REMEDIES, CheckedStore, by_kind

# Behind kind `end` all advice is to cut the log, and with `fewer` none is to build queues.
FOUND = [
    Finding("log", "place", "text", kind) for kind in _REMEDIES if kind not in ("end", "fewer")
]


def test_a_store_without_a_lock_is_built_again_once_no_broker_runs(
    copied: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copied("crash")
    monkeypatch.chdir(root.parent)
    (root / "lock").unlink()
    assert "that no broker runs on it" in run("verify", root).stderr
    rebuilds = [line for line, verb in advised_commands(root).items() if verb == "rebuild"]
    assert rebuilds
    for line in rebuilds:
        assert run(*shlex.split(line)[1:]).exit_code in (0, 1)


@pytest.mark.parametrize("place", ["commitlog", "consumequeue/LivePlain/1", "timerlog"])
@pytest.mark.parametrize("name", [".DS_Store", "notes.txt", "00000000000000000000.bak"])
def test_a_file_that_is_none_of_the_stores_is_moved_away(
    copied: Golden, place: str, name: str
) -> None:
    root = copied("live")
    foreign = root / place / name
    foreign.write_bytes(bytes(6148))
    said = run("verify", root)
    assert "foreign (high, 1):\n" in said.stderr
    assert str(foreign) in said.stdout
    assert [*advised_commands(root).values()] == ["verify"]
    if place == "commitlog":
        assert str(foreign) in run("rebuild", root).stdout
    foreign.rename(root.with_name(name))
    success("verify", root)


@pytest.mark.parametrize("parts", [["consumequeue"], ["index"], ["consumequeue", "index"]])
def test_nothing_is_built_in_sizes_that_the_log_contradicts(
    tmp_path: Path, parts: list[str]
) -> None:
    root, conf = tmp_path / "s", tmp_path / "b.conf"
    conf.write_text(
        "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n"
        "maxHashSlotNum=100\nmaxIndexNum=400\n"
    )
    with rmqstore.create(root, conf=conf) as writer:
        writer.append(pa.table({"topic": ["T"], "body": [b"x"], "keys": ["k"]}))
    sizes = {file: file.stat().st_size for file in (root / "consumequeue").glob("*/*/*")}
    for part in parts:
        shutil.rmtree(root / part)
    refused = run("rebuild", root)
    assert refused.exit_code == 2
    assert "name the broker's file (-c/--conf)" in refused.stderr
    with pytest.raises(StoreStateError, match="name the broker's file"):
        rmqstore.open(root, mode="a")
    assert not any((root / part).exists() for part in parts)
    if parts != ["index"]:
        assert "-c/--conf" in run("verify", root).stderr
    success("rebuild", root, "-c", conf)
    assert {file: file.stat().st_size for file in sizes} == sizes
    success("verify", root)


def test_a_rebuild_names_topics_that_were_deleted_and_come_back(
    copied: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = copied("live")
    topics = root / "config" / "topics.json"
    topics.write_text(topics.read_text().replace('"LivePlain"', '"Other"'))
    shutil.rmtree(root / "consumequeue" / "LivePlain")
    assert "topics that were deleted (LivePlain)" in run("verify", root).stderr + caplog.text
    caplog.clear()
    said = run("rebuild", root)
    assert "have queues again from what the log has of them: LivePlain" in said.stderr + caplog.text


def advised(checked: CheckedStore) -> str:
    """Return the advice of all kinds as one text."""
    return "\n".join(line for _, remedy, _ in by_kind(FOUND) for line in remedy.lines(checked))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dledger", "nobody else may append to the store"),
        ("v55-rocksdb-cq", "holds RocksDB queues, which cannot be written"),
    ],
)
def test_nothing_is_built_again_where_that_is_refused(
    golden_store: Golden, name: str, reason: str
) -> None:
    with rmqstore.open(golden_store(name)) as store:
        checked = CheckedStore.of(store.paths, "/s")
    text = advised(checked)
    assert reason in text
    assert "rmqstore rebuild /s" not in text
    assert "rmqstore verify /s" in text


def test_commands_name_the_parts_that_lie_elsewhere(copied: Golden, tmp_path: Path) -> None:
    root = copied("basic")
    log, conf = tmp_path / "a log", tmp_path / "b.conf"
    shutil.move(root / "commitlog", log)
    conf.write_text(f"storePathCommitLog={log}\n", encoding="utf-8")
    with rmqstore.open(root, commitlogs=[str(log)]) as store:
        checked = CheckedStore.of(store.paths, "/s", "/t")
    assert f"rmqstore rebuild /s --commitlog '{log}'\n" in advised(checked)
    assert f"rmqstore verify /s --commitlog '{log}' --tiered /t\n" in advised(checked)
    with rmqstore.open(root, conf=conf) as store:
        checked = CheckedStore.of(store.paths, "/s")
    assert f"rmqstore rebuild /s -c {conf} --commitlog '{log}'\n" in advised(checked)
    second = root / "commitlog-2"
    second.mkdir()
    with rmqstore.open(root, commitlogs=[log, second]) as store:
        checked = CheckedStore.of(store.paths, "/s")
    assert f"rebuild /s --commitlog '{log}' --commitlog {second}\n" in advised(checked)


def test_nothing_is_built_from_a_log_before_it_is_cut() -> None:
    found = [*FOUND, Finding("end", "place", "text", "end")]
    checked = CheckedStore("/s", "", is_cut_first=True)
    lines = [line for _, remedy, _ in by_kind(found) for line in remedy.lines(checked)]
    builds = {line.partition("rmqstore rebuild ")[2] for line in lines} - {""}
    assert builds == {"/s --truncate", "/s --dry-run"}
