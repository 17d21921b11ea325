"""Every verb on golden stores: no traceback, and what was found.

`make test-slow` takes all stores; the other tiers take two for each verb. `test_output.py` asks
what the formats give.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

import goldens
import rmqstore
from goldens import Golden
from json_reference import jsonable
from rmqstore.cli import main
from rmqstore.read.views.schema import VIEWS
from tiers import sampled, spread

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


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("n_stores", sampled(2, len(STORES)))
def test_a_verb_ends_well_with_every_store_and_scans_give_what_the_core_gives(
    golden_store: Golden, verb: str, n_stores: int
) -> None:
    for name in Random(verb).sample(STORES, n_stores):
        root = golden_store(name)
        shown = run(*command(root, verb), "--format", "jsonl")
        rows = [json.loads(line) for line in shown.stdout.split("\n") if line]
        if shown.exit_code == 2 and not rows:
            assert "error: " in shown.stderr or "not found" in shown.stderr
            continue
        if shown.exit_code == 1:
            assert "damage: " in shown.stderr, name
        if verb in SCANS:
            mode = {"mode": "DROPMALFORMED"} if shown.exit_code == 1 else {}
            expected = known(root, mode | SCANS[verb])
            assert rows == (expected[: len(rows)] if mode else expected), "damage may end the read"


def known(root: Path, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a scan as the core gives them."""
    with rmqstore.open(root) as store:
        scan = store.scan(**arguments)
        rows = [jsonable(row) for row in scan.to_arrow().to_pylist()]
        if store.parts.is_tiered and "msg_tags" in arguments | {"msg_key": None}:
            rows.sort(key=lambda row: row["storeTimestamp"])
    return rows


@pytest.mark.parametrize("suffix", ["parquet", "jsonl.gz", "csv"])
@pytest.mark.parametrize("n_stores", sampled(2, len(STORES)))
def test_every_store_is_exported(
    golden_store: Golden, tmp_path: Path, suffix: str, n_stores: int
) -> None:
    for name in Random(suffix).sample(STORES, n_stores):
        root, target = golden_store(name), tmp_path / f"{name}.{suffix}"
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
