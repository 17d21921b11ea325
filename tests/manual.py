"""The snippets of the manual and the folders that they name, with real stores so that all run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from click.testing import CliRunner

import broken_stores
import kafka_logs
import rmqstore
from rmqstore.cli import main

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
PLACES = ("/data/rocketmq", "/data/kafka", "/lake")  # that the pages name; a test has its own
N_ORDERS = 400

_BLOCK = re.compile(
    r"(<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>python|console)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

BROKEN = (  # stores of the page about crashed stores
    ("lost", "live", "commitlog", "newest", "missing"),
    ("short", "live", "commitlog", "newest", "cut"),
    ("zeroed", "live", "commitlog", "middle", "page"),
    ("unbuilt", "live", "consumequeue", "newest", "missing"),
    ("timers", "timers", "timerlog", "middle", "missing"),
    ("moved", "tiered", "COMMIT_LOG", "middle", "missing"),
)


class Snippet(NamedTuple):
    """A block of code of a page; `reason` says why a test cannot run it."""

    line: int
    language: str
    code: str
    reason: str | None


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(
            text.count("\n", 0, found.start("code")) + 1, found["language"], found["code"],
            found["reason"],
        )
        for found in _BLOCK.finditer(text)
    ]  # fmt: skip


def uses_spark(page: Path) -> bool:
    return any(
        "spark" in snippet.code for snippet in snippets(page) if snippet.language == "python"
    )


def make_store(golden_store: Callable[[str], Path], path: Path) -> None:
    """Make the store of most pages: a golden store, plus a topic of orders that have keys."""
    shutil.copytree(golden_store("live"), path)
    orders = pa.table(
        {
            "topic": ["Orders"] * N_ORDERS,
            "body": [f'{{"order": {number}}}'.encode() for number in range(N_ORDERS)],
            "tags": ["paid" if number % 2 else "created" for number in range(N_ORDERS)],
            "keys": [f"order-{number}" for number in range(N_ORDERS)],
            "properties": [{"price": str(number), "region": "EU"} for number in range(N_ORDERS)],
        },
        schema=pa.schema(
            {
                "topic": pa.string(), "body": pa.binary(), "tags": pa.string(), "keys": pa.string(),
                "properties": pa.map_(pa.string(), pa.string()),
            }
        ),
    )  # fmt: skip
    with rmqstore.open(path, mode="a") as store:
        store.append(orders)


def make_places(golden_store: Callable[[str], Path], folder: Path) -> None:
    make_store(golden_store, folder / "data" / "rocketmq" / "store")
    places = {"crashed": "crash", "batch": "batch-cq", "compacted": "compacted", "cut": "crash2"}
    for name, golden in places.items():
        shutil.copytree(golden_store(golden), folder / "data" / "rocketmq" / name)
    for name, golden, part, place, damage in BROKEN:
        case = broken_stores.Case(golden, "closed", part, place, damage)
        root = folder / "data" / "rocketmq" / name
        broken_stores.make(golden_store(golden), case, root)
    conf = f"storePathRootDir = {folder}/data/rocketmq/store\nbrokerName = broker-a\n"
    (folder / "data" / "rocketmq" / "broker.conf").write_text(conf, encoding="utf-8")
    kafka_logs.unpack("groups", folder / "data" / "kafka").rename(
        folder / "data" / "kafka" / "logs"
    )
    shutil.copytree(golden_store("live"), folder / ".demo" / "live")
    (folder / "lake").mkdir()
    (folder / "rows.jsonl").write_text('{"topic": "New", "body": "x"}\n', encoding="utf-8")


def placed(code: str, folder: Path) -> str:
    for place in PLACES:
        code = re.sub(rf"(?<![\w.]){place}\b", f"{folder}{place}", code)
    return code


def run_python(snippet: Snippet, page: Path, folder: Path, names: dict[str, Any]) -> None:
    lines = "\n" * (snippet.line - 1) + placed(snippet.code, folder)
    exec(compile(lines, str(page), "exec", dont_inherit=True), names)


def run_console(snippet: Snippet, folder: Path) -> None:
    """Run a block's commands and compare the output with the page; `…` stands for anything."""
    code = re.sub(r"\\\n *", "", snippet.code)  # a command may continue on the next line
    for block in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, *shown = block.splitlines()
        expected = int(found[1]) if (found := re.search(r"# exit (\d+)$", command)) else 0
        printed, code = _run_pipe(shlex.split(placed(command, folder), comments=True))
        assert code == expected, f"{command}: exit code {code}\n{printed}"
        lines = [line.rstrip() for line in printed.replace(str(folder), "").splitlines()]
        for line in shown:
            pattern = ".*".join(map(re.escape, line.strip().split("…")))
            assert any(re.fullmatch(pattern, found.strip()) for found in lines), (
                f"{command}: no {line!r} in\n{printed}"
            )


def _run_pipe(words: list[str]) -> tuple[str, int]:
    """Run `rmqstore …`, or what another command says to it: `echo … | rmqstore …`."""
    piped = None
    if "|" in words:
        bar = words.index("|")
        piped = subprocess.run(words[:bar], capture_output=True, text=True, check=True).stdout
        words = words[bar + 1 :]
    assert words[0] == "rmqstore", (
        f"{words[0]}: mark what is not rmqstore with <!-- not run: reason -->"
    )
    done = CliRunner().invoke(main, words[1:], input=piped)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output, done.exit_code
