"""Every verb on every golden store in every format: no traceback, and the same rows in each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

import goldens
import rmqstore
from rmqstore.cli import main
from rmqstore.exchange.json_rows import jsonable
from rmqstore.read.views.schema import VIEWS
from tiers import spread

Golden = Callable[[str], Path]

STORES = sorted(path.name.removesuffix(".tar.xz") for path in goldens.FOLDER.glob("*.tar.xz"))
# those whose rows the core gives by one call
SCANS: dict[str, dict[str, Any]] = {
    "dump": {},
    "dump --all": {"include_system_topics": True},
    "dump --scan commitlog": {"scan": "commitlog"},
    "dump --last 2": {"last": 2},
    "dump --mode PERMISSIVE": {"mode": "PERMISSIVE"},
    "query --tags TagA": {"msg_tags": "TagA"},
    "query -k key-1": {"msg_key": "key-1"},
}
VERBS = [
    *SCANS,
    *(f"view {name}" for name in sorted(VIEWS)),
    "describe", "stat --all", "topics --all", "groups", "brokers", "routes --all", "doctor",
    "verify", "get", "trace", "assign -g CG_part -c one -c two", "dump --body hex",
    "dump --charset latin-1",
]  # fmt: skip
# what reads RocksDB databases or clusters may be refused, but never with a traceback
CODES = {0, 1, 2}


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in CODES, result.output
    return result


def command(root: Path, verb: str) -> list[object]:
    name, *options = verb.split()
    if name == "view":
        return [name, options[0], root]
    if name not in ("get", "trace"):
        return [name, root, *options]
    with rmqstore.open(root) as store:
        order = "queue" if store.parts.is_tiered else "commitlog"
        first = store.scan(scan=order, columns="commitLogOffset,msgId", limit=1).to_arrow()
    ids = [str(one) for row in first.to_pylist() for one in row.values()] or ["none"]
    return [name, root, *(ids if name == "get" else ids[-1:])]


def from_csv(text: str) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if value != ""}
        for row in csv.DictReader(io.StringIO(text, newline=""))
    ]


def as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)


@pytest.mark.parametrize(("name", "verb"), spread(29, STORES, VERBS))
def test_every_verb_gives_the_same_rows_in_every_format(
    golden_store: Golden, name: str, verb: str
) -> None:
    arguments = command(golden_store(name), verb)
    shown = {
        form: run(*arguments, "--format", form)
        for form in ("jsonl", "json", "csv", "parquet", "pretty", "table")
    }
    codes = {result.exit_code for result in shown.values()}
    assert len(codes) == 1
    if codes == {2} and not shown["jsonl"].stdout:
        assert "error: " in shown["jsonl"].stderr or "not found" in shown["jsonl"].stderr
        return
    if codes == {1}:
        assert all("damage: " in result.stderr for result in shown.values())
        if not shown["json"].stdout:  # damage ended the plan of the read
            return
    rows = [json.loads(line) for line in shown["jsonl"].stdout.split("\n") if line]
    assert json.loads(shown["json"].stdout or "[]") == rows
    assert from_csv(shown["csv"].stdout) == [
        {key: as_text(value) for key, value in row.items() if value not in (None, "")}
        for row in rows
    ]
    stored = parquet.read_table(pa.BufferReader(shown["parquet"].stdout_bytes))
    assert len(stored) == len(rows)
    assert shown["pretty"].stdout.count("\n}\n") == len(rows)
    assert bool(shown["table"].stdout) or not rows
    if verb in SCANS:
        mode = {"mode": "DROPMALFORMED"} if codes == {1} else {}
        expected = known(golden_store(name), mode | SCANS[verb])
        assert rows == (expected[: len(rows)] if mode else expected), "damage may end the read"


def known(root: Path, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a scan as the core gives them."""
    with rmqstore.open(root) as store:
        scan = store.scan(**arguments)
        rows = [jsonable(row) for row in scan.to_arrow().to_pylist()]
        if store.parts.is_tiered and "msg_tags" in arguments | {"msg_key": None}:
            rows.sort(key=lambda row: row["storeTimestamp"])
    return rows


@pytest.mark.parametrize(("name", "suffix"), spread(11, STORES, ["parquet", "jsonl.gz", "csv"]))
def test_every_store_is_exported_into_every_format(
    golden_store: Golden, tmp_path: Path, name: str, suffix: str
) -> None:
    root, target = golden_store(name), tmp_path / f"rows.{suffix}"
    shown = run("export", root, target, "--all", "--mode", "DROPMALFORMED")
    assert target.exists() == (shown.exit_code == 0)
    if suffix == "parquet" and shown.exit_code == 0:
        lines = run("dump", root, "--all", "--mode", "DROPMALFORMED").stdout.splitlines()
        assert parquet.read_metadata(target).num_rows == len(lines)


@pytest.mark.parametrize("name", list(spread(9, STORES)))
def test_every_store_is_copied_and_rebuilt(golden_store: Golden, tmp_path: Path, name: str) -> None:
    target = tmp_path / "copy"
    shown = run("copy", golden_store(name), target, "--truncate", "--format", "json")
    if shown.exit_code == 2:
        assert "error: " in shown.stderr
        return
    assert isinstance(json.loads(shown.stdout), list)
    built = run("rebuild", target, "--format", "csv")
    assert built.stdout.startswith('"part","place","text"') or built.exit_code == 2
