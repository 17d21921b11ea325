"""What is advised about findings can be done with the store that was checked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rmqstore
from goldens import Golden
from rmqstore.errors import Finding
from rmqstore.inspect.remedies import _REMEDIES, CheckedStore, by_kind

# Behind kind `end` all advice is to cut the log, and with `fewer` none is to build queues.
FOUND = [
    Finding("log", "place", "text", kind) for kind in _REMEDIES if kind not in ("end", "fewer")
]


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


def test_nothing_is_built_from_a_log_before_it_is_cut() -> None:
    found = [*FOUND, Finding("end", "place", "text", "end")]
    lines = [
        line for _, remedy, _ in by_kind(found) for line in remedy.lines(CheckedStore("/s", ""))
    ]
    builds = {line.partition("rmqstore rebuild ")[2] for line in lines} - {""}
    assert builds == {"/s --truncate", "/s --dry-run"}
