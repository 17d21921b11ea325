"""Randomly damaged stores, read, checked, rebuilt and appended to: quick errors of our own only.

Each seed damages a store that the real RocketMQ wrote (``mutations``). A process of its own then
does all that can be done with a store, with bounds on its memory and time. The messages that it
reads are compared with the bytes on the disk by ``struct`` alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import select
import shutil
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import goldens
import rmqstore
import store_builder as build
import tiers
from mutations import mutate
from reading import plain, time_limit
from rmqstore import CorruptConfigError
from rmqstore.cli import main
from rmqstore.inspect.verify import verify
from rmqstore.read.views.schema import VIEWS

CLOSED = (
    "basic", "edges", "v2", "compressed", "ipv6", "prop-crc", "expired", "one", "preblank", "live",
    "v49",
)  # fmt: skip
OTHERS = (
    "crash", "crash2", "crash3", "crash4", "crash5", "lmq", "cq-ext", "batch-cq", "rocksdb-cq",
)  # fmt: skip
# written by brokers of groups, and not by us
OF_GROUPS = ("dledger", "dledger-mixed", "controller", "dledger-crash2", "dledger-crash3")
DATA = "dledger-n0/data"
MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
COLUMNS = [
    "topic", "queueId", "queueOffset", "body", "properties", "tags", "keys", "msgId", "bodyCRC",
    "sysFlag", "flag", "bornTimestamp", "storeTimestamp", "commitLogOffset", "storeSize",
    "preparedTransactionOffset", "reconsumeTimes",
]  # fmt: skip
WALL_SECONDS, CPU_SECONDS, MEMORY_BYTES = 60, 30, 1 << 30
V1, V2 = 0xDAA320A7, 0xDAA320AB
COMPRESSED = 1


class Trial:
    def __init__(self, golden: Path, folder: Path, seed: int) -> None:
        self.golden, self.folder, self.seed = golden, folder, seed
        self.complaints: list[str] = []
        self.done = ""

    def run(self) -> None:
        root = self.damaged("read")
        before = _state(root)
        for mode in MODES:
            for scan in ("queue", "commitlog"):
                rows = self.call(
                    f"{scan} {mode}", lambda s=scan, m=mode: _scan(root, scan=s, mode=m)
                )
                if rows is not None:
                    self.judge_rows(root, rows, scan, mode)
        self.call("look-ups", lambda: _look_up(root))
        for name in VIEWS:
            self.call(f"view {name}", lambda n=name: _view(root, n))
        self.call("verify", lambda: _verify(root))
        self.call(
            "pending", lambda: _scan(root, scan="queue", mode="DROPMALFORMED", include_pending=True)
        )
        for verb in (["stat", "--all"], ["stat", "--json"], ["verify", "--json"]):
            self.command(root, verb)
        if _state(root) != before:
            self.complaints.append("a read changed the store")
        self.appended()
        self.rebuilt()

    def damaged(self, name: str) -> Path:
        root = self.folder / name / self.golden.name
        shutil.copytree(self.golden, root, ignore=_dledger_index)
        self.done = mutate(root, random.Random(self.seed))
        return root

    def call(self, name: str, action: Callable[[], Any]) -> Any:
        cpu = time.process_time()
        answer = None
        try:
            with time_limit(WALL_SECONDS):
                answer = action()
        except rmqstore.RmqStoreError:
            pass
        except BaseException as err:  # noqa: BLE001 - what else may come is the question
            place = traceback.format_exc().splitlines()[-4:]
            self.complaints.append(f"{name}: foreign {type(err).__name__}: {err} {place}")
        used = time.process_time() - cpu
        if used > CPU_SECONDS:
            self.complaints.append(f"{name}: {used:.0f} s of CPU")
        return answer

    def command(self, root: Path, verb: list[str]) -> Any:
        def invoke() -> Any:
            shown = CliRunner().invoke(main, [verb[0], str(root), *verb[1:]])
            if shown.exception is not None and not isinstance(shown.exception, SystemExit):
                raise shown.exception
            return shown

        return self.call(f"rmqstore {' '.join(verb)}", invoke)

    def judge_rows(self, root: Path, rows: list[dict[str, Any]], scan: str, mode: str) -> None:
        log = _log(root)
        good = [row for row in rows if row.get("_corrupt_record") is None]
        # records there stand for messages of other queues
        own_queue = self.golden.name not in {"lmq", "batch-cq"}
        for row in good:
            wrong = _contradiction(row, log, own_queue=own_queue)
            if wrong:
                self.complaints.append(f"{scan} {mode}: {wrong} in {str(row)[:600]}")
        places = [
            (row["topic"], row["queueId"], row["queueOffset"], row["commitLogOffset"])
            for row in good
        ]
        if len(set(places)) < len(places):
            self.complaints.append(f"{scan} {mode}: a message twice")
        if self.golden.name in (*CLOSED, *OF_GROUPS[:3]) and not (root / "abort").exists():
            lost = self.must_be_there(root, log, scan) - {row["commitLogOffset"] for row in good}
            if lost:
                self.complaints.append(
                    f"{scan} {mode}: undamaged, but missing: {sorted(lost)[:8]} of {len(lost)}"
                )

    def must_be_there(self, root: Path, log: _Log, scan: str) -> set[int]:
        """Return the physical offsets of the messages whose record and unit were not touched."""
        valid = _log(self.golden)
        found = set()
        kind = "expected" if scan == "queue" else "commitlog"
        for row in goldens.lines(self.golden.name, kind):
            if row.get("blank"):
                continue
            start, size = row["physicalOffset"], row.get("storeSize", row.get("size"))
            if log.read(start, size) != valid.read(start, size):
                continue
            frame = row["dledger"]["pos"] if "dledger" in row else start
            if log.read(frame, start - frame) != valid.read(frame, start - frame):
                continue
            if scan == "queue":
                path = root / "consumequeue" / row["topic"] / str(row["queueId"])
                if _unit(path, row["queueOffset"]) != bytes.fromhex(row["cqUnitHex"]):
                    continue
            found.add(start)
        return found

    def appended(self) -> None:
        root = self.damaged("append")
        batch = pa.record_batch({"topic": ["Appended"] * 3, "body": [b"1", b"2", b"3"]})

        def append() -> bool:
            with rmqstore.open(root, "a") as store:
                store.append(batch)
            return True

        if self.call("append", append):
            rows = self.call(
                "read of what was appended",
                lambda: _scan(root, subscribe="Appended", columns=["body"]),
            )
            if sorted(row["body"] for row in rows or []) != [b"1", b"2", b"3"]:
                self.complaints.append(f"appended rows are not there: {rows}")

    def rebuilt(self) -> None:
        root = self.damaged("rebuild")
        done = self.command(root, ["rebuild"])
        if done is None or done.exit_code:
            return
        findings = [
            one
            for one in self.call("verify after rebuild", lambda: _verify(root)) or ()
            if one.part != "log"
        ]
        if findings:
            self.complaints.append(
                f"rebuild ended with 0, but: {[str(finding)[:300] for finding in findings[:3]]}"
            )


def _dledger_index(folder: str, _names: list[str]) -> set[str]:
    """Return what is not copied: the sparse index of a DLedger log, which is never read."""
    return {"index"} if Path(folder).name.startswith("dledger-") else set()


class _Log:
    def __init__(self, files: dict[int, bytes]) -> None:
        self.files = files

    def read(self, start: int, size: int) -> bytes:
        for first, data in sorted(self.files.items(), reverse=True):
            if first <= start < first + len(data):
                return data[start - first : start - first + size]
        return b""


def _log(root: Path) -> _Log:
    files = {}
    folders = [folder for folder in (root / "commitlog", root / DATA) if folder.is_dir()]
    for path in (path for folder in folders for path in sorted(folder.iterdir())):
        if (
            path.name.isascii()
            and path.name.isdecimal()
            and len(path.name) == 20
            and path.is_file()
            and not path.is_symlink()
        ):
            with contextlib.suppress(OSError):
                files[int(path.name)] = path.read_bytes() if path.stat().st_size < 1 << 24 else b""
    return _Log(files)


def _unit(folder: Path, queue_offset: int) -> bytes:
    if not folder.is_dir():
        return b""
    for path in folder.iterdir():
        if (
            path.name.isascii()
            and path.name.isdecimal()
            and path.is_file()
            and not path.is_symlink()
            and path.stat().st_size < 1 << 24
        ):
            place = queue_offset * 20 - int(path.name)
            data = path.read_bytes()
            if 0 <= place < len(data):
                return data[place : place + 20]
    return b""


def _contradiction(row: dict[str, Any], log: _Log, *, own_queue: bool) -> str | None:
    """Return what of a row the bytes at its place do not say."""
    start, size = row["commitLogOffset"], row["storeSize"]
    record = log.read(start, size)
    if len(record) < 91:
        return "no record"
    stored_size, magic, crc, queue_id, _, queue_offset, place, sys_flag = struct.unpack_from(
        ">iIiiiqqI", record
    )
    hosts = 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
    position = 84 + hosts
    (body_length,) = struct.unpack_from(">i", record, position)
    body = record[position + 4 : position + 4 + body_length]
    position += 4 + body_length
    width = 1 if magic == V1 else 2
    topic_length = int.from_bytes(record[position : position + width], "big")
    topic = record[position + width : position + width + topic_length]
    position += width + topic_length
    (properties_length,) = struct.unpack_from(">h", record, position)
    properties = record[position + 2 : position + 2 + properties_length]
    facts = {
        "size": stored_size == size,
        "magic": magic in (V1, V2),
        "physical offset": place == start,
        "body CRC": build.body_crc(body) == crc == row["bodyCRC"] or not own_queue,
        "flags": (sys_flag & 0x7FFFFFFF) == (row["sysFlag"] & 0x7FFFFFFF) or not own_queue,
    }
    if own_queue:
        facts |= {
            "queue": (queue_id, queue_offset) == (row["queueId"], row["queueOffset"]),
            "body": bool(sys_flag & COMPRESSED) or body == row["body"],
        }
        with contextlib.suppress(UnicodeDecodeError):
            facts["topic"] = row["topic"] == topic.decode()
        with contextlib.suppress(UnicodeDecodeError):
            facts["properties"] = row["properties"] == _properties(properties.decode())
    return next((f"{name} is wrong" for name, holds in facts.items() if not holds), None)


def _properties(text: str) -> dict[str, str]:
    """Parse a property string as MessageDecoder#string2messageProperties does."""
    found = {}
    for part in text.split("\x02"):
        name, separator, value = part.partition("\x01")
        if separator and name and value:
            found[name] = value
    return found


def _scan(root: Path, **options: Any) -> list[dict[str, Any]]:
    if options.get("mode", "FAILFAST") != "FAILFAST":
        options["fail_on_data_loss"] = False
    options.setdefault("columns", COLUMNS)
    with rmqstore.open(root) as store:
        return [
            plain(row)
            for batch in store.scan(include_system_topics=True, **options)
            for row in batch.to_pylist()
        ]


def _look_up(root: Path) -> None:
    with rmqstore.open(root) as store:
        for topic in store.topics()[:4]:
            for key in ("k1", "none"):
                with contextlib.suppress(rmqstore.RmqStoreError):
                    store.query(topic, key, scan_uncovered=True)
        for mode in MODES:
            with contextlib.suppress(rmqstore.RmqStoreError):
                store.scan(msg_key="k1", mode=mode, fail_on_data_loss=False).read_all()


def _view(root: Path, name: str) -> None:
    with rmqstore.open(root) as store:
        try:
            store.view(name).read_all().validate(full=True)
        except CorruptConfigError as err:
            assert name in ("groups", "consumed"), err  # noqa: PT017 - others need no table


def _verify(root: Path) -> list[Any]:
    with rmqstore.open(root) as store:
        return list(verify(store))


def _state(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        found[str(path.relative_to(root))] = (status.st_mtime_ns, status.st_size, status.st_mode)
    return found


_MOST_TEXT, _MOST_COMPLAINTS = 4000, 20  # of what a trial has to say


def _in_a_process(trial: Trial) -> list[str]:
    """Run a trial in a child with bounds; return its complaints, also that it died."""
    reading, writing = os.pipe()
    inherited = _own_memory(os.getpid())
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            logging.disable(logging.CRITICAL)
            sys.stdin, sys.stdout, sys.stderr = io.StringIO(), io.StringIO(), io.StringIO()
            try:
                trial.run()
            except BaseException:  # noqa: BLE001 - it must reach the parent
                trial.complaints.append(traceback.format_exc())
            complaints = [text[:_MOST_TEXT] for text in trial.complaints[:_MOST_COMPLAINTS]]
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps([trial.done, complaints]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    output, most = _await(child, reading, inherited)
    _, status = os.waitpid(child, 0)
    if most > MEMORY_BYTES:
        return [f"{most >> 20} MiB of memory"]
    if not output:
        return [f"the process died with status {status}"]
    done, complaints = json.loads(output)
    return [f"{done}: {text}" for text in complaints]


def _await(child: int, reading: int, inherited: int) -> tuple[bytes, int]:
    """Return what a child printed, and how many bytes of memory it took; too many end it."""
    most = 0
    with os.fdopen(reading, "rb") as pipe:
        while not select.select([pipe], [], [], 0.02)[0]:
            most = max(most, _own_memory(child) - inherited)
            if most > MEMORY_BYTES:
                os.kill(child, signal.SIGKILL)
        return pipe.read(), most


def _own_memory(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    return next(
        (int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon")),
        0,
    )


def _try(
    golden_store: goldens.Golden,
    folder: Path,
    seed: int,
    names: tuple[str, ...] = CLOSED * 2 + OTHERS,
) -> list[str]:
    trial = Trial(golden_store(names[seed % len(names)]), folder / str(seed), seed)
    try:
        return [f"seed {seed}, {trial.golden.name}: {text}" for text in _in_a_process(trial)]
    finally:
        shutil.rmtree(folder / str(seed), ignore_errors=True)


# the first ones take stores of every kind
SEEDS = sorted(range(62), key=lambda seed: seed % 6 != 0)


@pytest.mark.parametrize("seed", tiers.split(SEEDS, 6))
def test_a_mutation_ends_well(golden_store: goldens.Golden, tmp_path: Path, seed: int) -> None:
    wrong = _try(golden_store, tmp_path, seed)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seed", tiers.split(range(40), 5))
def test_a_mutation_of_a_store_of_a_group_ends_well(
    golden_store: goldens.Golden, tmp_path: Path, seed: int
) -> None:
    wrong = _try(golden_store, tmp_path, seed, OF_GROUPS)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 4000, 100))
def test_many_mutations_end_well(golden_store: goldens.Golden, tmp_path: Path, first: int) -> None:
    wrong = [
        text for seed in range(first, first + 100) for text in _try(golden_store, tmp_path, seed)
    ]
    assert not wrong, "\n".join(wrong)
