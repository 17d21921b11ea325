"""What a type checker tells users of the package about arguments, also when they are handed on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path

from rmqstore import MessageStore
from rmqstore.query.arguments import ScanArguments, SelectionArguments, TopicArguments
from rmqstore.query.selection import parse_selection

SNIPPET = """
import rmqstore
with rmqstore.open("s") as store:
    scan = store.scan(subscribe="T", mode="PERMISSIVE", where="queueOffset > 5", limit=3)
    scan.read_all()
    store.scan(starting_timestamp=0)
    n: int = store.count(subscribe=["T"], scan="commitlog", check_crc=False)
    store.view("queues", subscribe_pattern="T.*", mode="DROPMALFORMED", where="messages > 0")
    store.scan(limits=3)  # wrong: call-arg
    store.scan(mode="FAIL")  # wrong: arg-type
    store.scan(scan="log")  # wrong: arg-type
    store.scan(subscribe=5)  # wrong: arg-type
    store.count(starting_offset="earliest")  # wrong: call-arg
    store.count(mode="failfast")  # wrong: arg-type
    store.view("queues", limits=3)  # wrong: call-arg
    store.offset_at("T", 0, 0, "low")  # wrong: arg-type
rmqstore.open("s", broker="b")  # wrong: call-overload
rmqstore.open("s", mode="w")  # wrong: call-overload
with rmqstore.open("s", mode="a", commitlogs=["a"], index="i") as writer:
    writer.scan()  # wrong: attr-defined
"""


def test_a_type_checker_knows_the_arguments_of_reads(tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET, encoding="utf-8")
    arguments = [
        "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", "--no-error-summary",
        str(file),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments], cwd=tmp_path,
        env={**os.environ, "COLUMNS": "300"}, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    every = re.findall(r"snippet\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)
    found = list(dict.fromkeys(every))  # a call that fits no overload may be named once for each
    lines = enumerate(SNIPPET.splitlines(), start=1)
    assert found == [
        (str(number), line.split("# wrong: ")[1]) for number, line in lines if "# wrong: " in line
    ], done


def test_typed_arguments_are_those_that_there_are() -> None:
    selection = set(parse_selection.__kwdefaults__ or {}) - {"streaming"}
    assert set(SelectionArguments.__annotations__) == selection
    assert set(TopicArguments.__annotations__) < selection
    shown = set(signature(MessageStore.scan).parameters) - {"self", "columns"}
    assert set(ScanArguments.__annotations__) == shown > selection
