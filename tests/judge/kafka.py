"""Kafka as the judge of kafkalog: broken log directories by a seed, and each claim compared.

``python -m judge.kafka N=200 SEED=7``, in the folder of the tests, prints each case that breaks a
rule, shrunk to one line of text, from which its log directory is made again.
"""

from __future__ import annotations

import json
import logging
import lzma
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from select import select
from typing import Any, Final, NamedTuple, get_args

import pyarrow as pa

import kafka_logs
import kafkalog
from kafkalog.partition import Partition
from kafkalog.scan import IsolationLevel
from kafkalog.storage.log_dirs import CHECKPOINTS, CLEAN_SHUTDOWN, METADATA
from kafkalog.storage.names import parse_folder
from kafkalog.verify import partition_row, verify
from reading import time_limit
from rmqstore.errors import RmqStoreError
from rmqstore.query.damage import Mode

VERSION: Final = "4.1.1"
CORPUS: Final = kafka_logs.FOLDER.with_name("judge-kafka.json.xz")
LEVELS: Final = get_args(IsolationLevel)
MODES: Final = get_args(Mode)
# Where we differ from Kafka on purpose.
DIFFERENCES: Final = {
    "markers": "Markers decide what is committed. A broker believes indexes of aborted transactions"
    " and producer snapshots instead, and gives records as committed that were aborted or are open"
    " if these files are gone; verify has a finding.",
    "other folders": "Folders of deleted, moved and unknown partitions are named and not checked. A"
    " broker opens them, too, and may fail at what is damaged in them.",
    "topic ids": "Which ids the cluster knows is not compared. A broker puts other folders aside.",
}
_PROJECT: Final = Path(__file__).parents[2]
_SECONDS: Final = 60  # for an answer, of Kafka's or ours
_TIMES: Final = 6  # looked up in each partition
# How often a kind of file is drawn; another kind is drawn once.
_OFTEN: Final = {"log": 8, "index": 3, "timeindex": 3, "txnindex": 3, "snapshot": 3}
Values = dict[str, Any]


class Fault(NamedTuple):
    """What befell a file: its path in the log directory, and the damage with its parameters."""

    path: str
    damage: str


class Case(NamedTuple):
    """A broken log directory.

    Attributes:
        origin: a golden log directory.
        partitions: the names of the folders that are left of it.
        state: ``closed`` or ``killed``, whatever state the origin was in.
        faults: what befell its files, one after the other.
    """

    origin: str
    partitions: tuple[str, ...]
    state: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        faults = (":".join(fault) for fault in self.faults)
        return " ".join([self.origin, ",".join(self.partitions), self.state, *faults])

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case that a line of text names."""
        origin, partitions, state, *faults = text.split(" ")
        parsed = tuple(Fault(*fault.split(":", 1)) for fault in faults)
        return cls(origin, tuple(partitions.split(",")), state, parsed)

    def smaller(self) -> Iterator[Case]:
        """Yield the case with each fault less, and with each partition less that no fault needs."""
        for at in range(len(self.faults)):
            yield self._replace(faults=(*self.faults[:at], *self.faults[at + 1 :]))
        for name in self.partitions:
            left = tuple(one for one in self.partitions if one != name)
            if left and f"{name}/" not in str(self.faults):
                yield self._replace(partitions=left)


class Asked(NamedTuple):
    """What Kafka and kafkalog are asked: times by partition, and topics that have an id."""

    times: dict[str, list[int]]
    ids: dict[str, str]


@cache
def _golden(name: str) -> Path:
    """Return a golden log directory, which is unpacked once; ``epochs/b1`` is one of several."""
    store, _, inside = name.partition("/")
    if inside:
        return _golden(store) / inside
    folder = tempfile.TemporaryDirectory(prefix="judge-golden-")
    _FOLDERS.append(folder)
    return kafka_logs.unpack(store, Path(folder.name))


_FOLDERS: list[Any] = []  # deleted as Python ends
_ORIGINS: Final = (*kafka_logs.EVERY, "epochs/b1", "epochs/b2d1", "epochs/b2d2")


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    chance = random.Random(seed)
    origin = chance.choice([name for name in _ORIGINS if name != "epochs"])
    root = _golden(origin)
    parsed = {path.name: parse_folder(path.name) for path in root.iterdir() if path.is_dir()}
    folders = sorted(
        name for name, key in parsed.items()
        if key is not None and not key.state and "__cluster" not in name
    )  # fmt: skip
    chosen = sorted(chance.sample(folders, min(chance.choice([1, 2, 3]), len(folders))))
    files = [f"{name}/{path.name}" for name in chosen for path in sorted((root / name).iterdir())]
    files += [name for name in CHECKPOINTS if (root / name).exists()]
    by_kind: dict[str, list[str]] = {}
    for file in files:
        name = file.rpartition("/")[2]
        by_kind.setdefault(name.partition(".")[2] if name[0].isdigit() else name, []).append(file)
    kinds = sorted(by_kind)
    n_faults = chance.choice([0, 1, 1, 1, 1, 2, 2, 3, 4])
    faults = []
    for kind in chance.choices(kinds, [_OFTEN.get(kind, 1) for kind in kinds], k=n_faults):
        file = chance.choice(by_kind[kind])
        damage = _draw_damage(chance, root / file, [one for one in by_kind[kind] if one != file])
        faults.append(Fault(file, damage))
    return Case(origin, tuple(chosen), chance.choice(["closed", "killed"]), tuple(faults))


def _draw_damage(chance: random.Random, path: Path, alike: list[str]) -> str:
    """Return a damage for a file; there are others alike."""
    content = path.read_bytes().rstrip(b"\0")  # not the megabytes of zeros of a live index
    at = chance.randrange(len(content) + 1)
    if ".log" in path.name and chance.random() < 0.6:  # the head of a batch
        starts = [0]
        while (size := int.from_bytes(content[starts[-1] + 8 :][:4], "big")) and starts[-1] < at:
            starts.append(starts[-1] + 12 + size)
        at = min(starts[-1] + chance.randrange(61), len(content))
    n_bytes = chance.choice([8, 64, 512, 4096])
    number, _, kind = path.name.partition(".")
    names = [f"{path.name}{suffix}" for suffix in (".deleted", ".cleaned", ".swap", ".bak")]
    if number.isdigit():
        names += [f"{int(number) + more:020}.{kind}" for more in (1, 7)]
        names += [f"{int(number)}.{kind}", f"copy.{kind}"]
    damages = [
        "missing", "cut=0", f"cut={at}", f"longer={n_bytes}", f"repeated={at}",
        f"zeros={at // n_bytes * n_bytes},{n_bytes}", f"old={at // n_bytes * n_bytes},{n_bytes}",
        *(f"changed={at},{chance.randrange(1, 256)}" for _ in range(2)),
        f"renamed={chance.choice(names)}", f"twin={chance.choice(names)}",
    ]  # fmt: skip
    if alike:
        damages += [f"{damage}={chance.choice(alike)}" for damage in ("content", "swapped")]
    return chance.choice(damages)


def _damage(root: Path, path: Path, damage: str) -> None:
    """Let a damage befall a file, which keeps its time: look-ups by time may ask for it."""
    name, _, parameter = damage.partition("=")
    if name in {"renamed", "twin"}:
        (path.rename if name == "renamed" else lambda to: shutil.copy2(path, to))(
            path.with_name(parameter)
        )
        return
    content = path.read_bytes()
    numbers = [int(word) for word in parameter.split(",") if word.isdigit()]
    at, n_bytes = (*numbers, 0, 0)[:2]
    n_bytes = min(n_bytes, max(len(content) - at, 0))
    if name == "swapped":
        _write(path, (root / parameter).read_bytes())
        _write(root / parameter, content)
    elif name == "content":
        _write(path, (root / parameter).read_bytes())
    elif name == "cut":
        _write(path, content[:at])
    elif name == "longer":
        _write(path, content + bytes(byte * 37 + 11 & 255 for byte in range(at)))
    elif name == "repeated":
        _write(path, content + content[:at])
    elif name == "zeros":
        _write(path, content[:at] + bytes(n_bytes) + content[at + n_bytes :])
    elif name == "old":
        _write(path, content[:at] + content[:n_bytes] + content[at + n_bytes :])
    elif name == "changed" and at < len(content):
        _write(path, content[:at] + bytes([content[at] ^ numbers[1]]) + content[at + 1 :])
    elif name == "missing":
        path.unlink()


def _write(path: Path, content: bytes) -> None:
    times = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def make(case: Case, root: Path) -> Asked:
    """Make the log directory of a case, and return what is asked of it.

    A fault changes nothing if a file that it needs is gone by then.
    """
    origin = _golden(case.origin)
    kept = [path for path in origin.iterdir() if path.is_file() or path.name in case.partitions]
    root.mkdir(parents=True)
    subprocess.run(["cp", "-a", "--sparse=always", *kept, root], check=True)
    names = [" ".join(name.rpartition("-")[::2]) for name in case.partitions]
    for checkpoint in CHECKPOINTS:
        if (root / checkpoint).exists():
            lines = (root / checkpoint).read_text().splitlines()[2:]
            lines = [line for line in lines if line.rpartition(" ")[0] in names]
            _write(root / checkpoint, "\n".join(["0", str(len(lines)), *lines, ""]).encode())
    (root / CLEAN_SHUTDOWN).unlink(missing_ok=True)
    if case.state == "closed":
        (root / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')
    asked = Asked({}, {})
    bounds = kafka_logs.bounds(case.origin.partition("/")[0])
    for folder in case.partitions:
        topic, _, number = folder.rpartition("-")
        times = [row[0] for row in bounds[topic, int(number)]["offsetsForTimes"]]
        asked.times[folder] = times[:: max(len(times) // _TIMES, 1)]
        if (root / folder / METADATA).exists():
            asked.ids[topic] = (root / folder / METADATA).read_text().split()[-1]
    for path, damage in case.faults:
        others = [root / word for word in damage.partition("=")[2].split(",") if "/" in word]
        if all(file.exists() for file in (root / path, *others)):
            _damage(root, root / path, damage)
    return asked


def _sizes(root: Path) -> dict[str, tuple[int, int]]:
    """Return length and time of each file of a log directory."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    statuses = {str(path.relative_to(root)): path.stat() for path in files}
    return {path: (status.st_size, status.st_mtime_ns) for path, status in statuses.items()}


class Original:
    """A JVM in which Kafka loads log directories; it is started again if it hangs or ends."""

    def __init__(self, folder: Path) -> None:
        """Compile the class that answers into a folder, and start the JVM."""
        sys.path.append(str(_PROJECT / "benchmarks"))
        from kafka_broker import broker_jars  # which imports pyspark

        classes = os.pathsep.join(map(str, [folder, *broker_jars(_PROJECT / ".kafka", VERSION)]))
        source = Path(__file__).with_name("KafkaOriginal.java")
        subprocess.run(["javac", "-cp", classes, "-d", folder, source], check=True)
        name = "org.apache.kafka.clients.consumer.internals.KafkaOriginal"
        self._command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", classes, name]
        self._start()

    def _start(self) -> None:
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._jvm = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=nothing)

    def answer(self, root: Path, asked: Asked) -> Values:
        """Return what Kafka makes of a log directory, which it changes.

        Returns:
            ``starts`` and ``refusal``; by partition start, end, stable and times, and by isolation
            level the records, with errors of a consumer; and ``files``: the logs that lost bytes
            other than zeros, and were not replaced or split, with their lengths before and after.
        """
        written = {
            path: len((root / path).read_bytes().rstrip(b"\0"))
            for path in _sizes(root)
            if path.endswith(".log") and not [*(root / path).parent.glob("*.log.swap")]
        }
        stdin, stdout = self._jvm.stdin, self._jvm.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"root": str(root), **asked._asdict()}).encode() + b"\n")
        stdin.flush()
        line = stdout.readline() if select([stdout], [], [], _SECONDS)[0] else b""
        if not line:
            self.close()
            self._start()
        answer = json.loads(line or '{"starts": false, "refusal": "it hangs", "partitions": {}}')
        after = _sizes(root)
        left = {path: after[path][0] if path in after else None for path in written}
        made = {path for path in after if path.endswith(".log") and path not in written}
        split = {path.partition("/")[0] for path in made if after[path][0]}
        answer["files"] = {
            path: [size, left[path]]
            for path, size in written.items()
            if (left[path] or 0) < size and path.partition("/")[0] not in split
        }
        return answer

    def close(self) -> None:
        """End the JVM."""
        self._jvm.kill()
        self._jvm.wait()


class _Warnings(logging.Handler):
    """Collects what kafkalog warns of, and keeps it from the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logger = logging.getLogger("kafkalog")
        logger.addHandler(self)
        logger.propagate = False
        return self.texts

    def __exit__(self, *_: object) -> None:
        logging.getLogger("kafkalog").removeHandler(self)


def _value(ask: Callable[[], Any]) -> Any:
    """Return a value, or its error as one; ``foreign`` has that of another library, or a hang."""
    try:
        with time_limit(_SECONDS):
            return ask()
    except RmqStoreError as err:
        return {"error": type(err).__name__, "text": str(err)}
    except Exception:  # noqa: BLE001 - that is what is looked for
        return {"error": "foreign", "text": traceback.format_exc()}


def claims(root: Path, asked: Asked) -> Values:
    """Return what kafkalog says of a log directory.

    Returns:
        ``findings`` as part, place and text; by partition a row of ``stat``, look-ups by time, and
        by isolation level and mode the records, words (rows that stand for damage, and warnings)
        and the error; and ``changed``, the files that reading changed.
    """
    before = _sizes(root)
    found: Values = {"findings": [], "partitions": {}}

    def ask() -> None:
        with kafkalog.open(root) as logs:
            found["findings"] += [("log", f"{root}/{key}", "is gone") for key in logs.missing]
            found["findings"] += [finding[:3] for finding in verify(logs.partitions.values())]
            for partition in logs.partitions.values():
                name = Path(partition.path).name
                found["partitions"][name] = _of_partition(partition, asked.times.get(name, []))

    with _Warnings():
        error = _value(ask)
    if error is not None:
        found["findings"] += [("all", f"{root}/{name}", str(error)) for name in asked.times]
    after = _sizes(root)
    found["changed"] = [path for path in {*before, *after} if before.get(path) != after.get(path)]
    return found


def _of_partition(partition: Partition, times: list[int]) -> Values:
    found: Values = {"stat": _value(lambda: partition_row(partition).to_pylist()[0])}
    found |= {"is_clean": partition.is_clean, "parts": {}}
    found["times"] = {str(at): _value(lambda at=at: partition.offset_for_time(at)) for at in times}
    for level in LEVELS:
        found[level] = {}
        for mode in MODES:
            rows: list[tuple[int, int]] = []
            with _Warnings() as words:
                scan = partition.scan(isolation_level=level, mode=mode)
                error = _value(lambda scan=scan, words=words, rows=rows: _read(scan, rows, words))
            found[level][mode] = {"rows": rows, "words": words, "error": error}
        whole = found[level]["DROPMALFORMED"]["rows"]
        end = whole[len(whole) // 2][0] if whole else 0
        rows = []
        with _Warnings() as words:
            scan = partition.scan(None, end, isolation_level=level, mode="DROPMALFORMED")
            error = _value(lambda scan=scan, words=words, rows=rows: _read(scan, rows, words))
        found["parts"][level] = {"rows": rows, "error": error}
    return found


def _read(scan: kafkalog.Scan, rows: list[tuple[int, int]], words: list[str]) -> None:
    for batch in scan:
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        for row, at in zip(batch.to_pylist(), times, strict=True):
            if row.get("_corrupt_record") is None:
                rows.append((row["offset"], _crc(row, -1 if at is None else at)))
            else:
                words.append(row["_corrupt_record"])


def _crc(row: Values, timestamp: int) -> int:
    """Return the checksum of a record, as the JVM computes it."""
    parts = [row["key"], row["value"]]
    for header in row["headers"]:
        parts += [header["key"].encode(), header["value"]]
    crc = zlib.crc32(struct.pack(">q", timestamp))
    for content in parts:
        crc = zlib.crc32(struct.pack(">i", -1 if content is None else len(content)), crc)
        crc = zlib.crc32(content or b"", crc)
    return crc


# What decides a scan besides the log, its offset indexes and checkpoints.
_DECIDING: Final = {"read_uncommitted": (), "read_committed": ("snapshot", "txnindex")}
# Each rule takes the claims and the answer of Kafka, and yields what is broken, in words.
Rule = Callable[[Values, Values], Iterator[str]]
RULES: list[Rule] = []


def _rule(check: Rule) -> Rule:
    RULES.append(check)
    return check


def _said(claims: Values, name: str, *parts: str) -> bool:
    """Return whether ``verify`` says anything of a partition, or of the whole log directory.

    Args:
        claims: of the log directory.
        name: of the partition.
        parts: that count besides the log, its offset indexes and checkpoints.
    """
    inside = re.compile(rf"/{re.escape(name)}(/|$|,)|/[^/]*-checkpoint$")
    said = [part for part, place, _ in claims["findings"] if inside.search(place)]
    return not {"log", "index", "checkpoint", "all", *parts}.isdisjoint(said)


def _both(claims: Values, answer: Values) -> Iterator[tuple[str, Values, Values]]:
    """Yield the partitions that both have: name, what we say and what Kafka does."""
    for name in claims["partitions"].keys() & answer["partitions"].keys():
        yield name, claims["partitions"][name], answer["partitions"][name]


def _reads(claims: Values, answer: Values) -> Iterator[tuple[str, str, str, Values, list[Any]]]:
    """Yield each scan: name, isolation level, a title, what it gave and what Kafka serves."""
    for name, ours, kafkas in _both(claims, answer):
        for level in LEVELS:
            served = [tuple(row) for row in kafkas[level]["records"]]
            for mode in MODES:
                yield name, level, f"{name} {level} {mode}", ours[level][mode], served


def _apart(ours: list[Any], kafkas: list[Any]) -> str:
    more, less = sorted({*ours} - {*kafkas}), sorted({*kafkas} - {*ours})
    return f"{len(more)} more {more[:2]}, {len(less)} fewer {less[:2]} than Kafka's {len(kafkas)}"


@_rule
def what_is_called_valid_is_loaded(claims: Values, answer: Values) -> Iterator[str]:
    if not answer["starts"] and not claims["findings"]:
        yield f"Kafka refuses the log directory: {answer['refusal']}"
    for name in claims["partitions"]:
        is_said = _said(claims, name, "snapshot", "txnindex", "timeindex")
        if answer["starts"] and name not in answer["partitions"] and not is_said:
            yield f"{name}: Kafka does not serve it"


@_rule
def what_is_called_valid_is_served_whole(claims: Values, answer: Values) -> Iterator[str]:
    for name, level, title, read, served in _reads(claims, answer):
        is_said = _said(claims, name, *_DECIDING[level])
        if not is_said and (read["error"] or read["rows"] != served):
            yield f"{title}: {read['error']} {_apart(read['rows'], served)}"
    for name, _, kafkas in _both(claims, answer):
        for level in LEVELS:
            if kafkas[level]["errors"] and not _said(claims, name, *_DECIDING[level]):
                yield f"{name} {level}: a consumer fails: {kafkas[level]['errors'][0]}"


@_rule
def bounds_are_those_of_kafka(claims: Values, answer: Values) -> Iterator[str]:
    for name, ours, kafkas in _both(claims, answer):
        for key in ("start", "end", "last_stable"):
            found, wanted = ours["stat"].get(f"{key}_offset"), kafkas[key.removeprefix("last_")]
            deciding = _DECIDING["read_committed"] if key == "last_stable" else ()
            if found != wanted and found is not None and not _said(claims, name, *deciding):
                yield f"{name} {key}: {found}, Kafka has {wanted}"


@_rule
def a_killed_log_ends_where_a_recovery_ends_it(claims: Values, answer: Values) -> Iterator[str]:
    for name, ours, kafkas in _both(claims, answer):
        end = ours["stat"].get("end_offset")
        texts = [text for part, place, text in claims["findings"] if f"/{name}/" in place]
        is_odd = re.search(
            r"may empty|not in order|20 digits|an entry sends|zeros foll", str(texts)
        )
        if not ours["is_clean"] and end not in {kafkas["end"], None} and not is_odd:
            yield f"{name}: {end}, Kafka has {kafkas['end']}"


@_rule
def what_is_committed_is_as_in_kafka(claims: Values, answer: Values) -> Iterator[str]:
    alike = {
        name
        for name, level, _, read, served in _reads(claims, answer)
        if level == LEVELS[0] and read["rows"] == served
    }
    for name, level, title, read, served in _reads(claims, answer):
        parts = {part for part, place, _ in claims["findings"] if f"/{name}" in place}
        is_odd = parts & {"snapshot", "txnindex", "index"} or read["error"] or read["words"]
        if name in alike and level == LEVELS[1] and read["rows"] != served and not is_odd:
            yield f"{title}: {_apart(read['rows'], served)}"


@_rule
def a_part_of_a_log_is_that_of_the_whole(claims: Values, _: Values) -> Iterator[str]:
    for name, ours in claims["partitions"].items():
        for level in LEVELS:
            whole, part = ours[level]["DROPMALFORMED"]["rows"], ours["parts"][level]
            if [*part["rows"]] != whole[: len(whole) // 2] and not part["error"]:
                yield f"{name} {level}: {_apart(part['rows'], whole[: len(whole) // 2])}"


@_rule
def what_kafka_cuts_or_deletes_is_said(claims: Values, answer: Values) -> Iterator[str]:
    for path, (size, left) in answer["files"].items():
        name = path.partition("/")[0]
        if not answer["starts"] or name not in answer["partitions"]:
            continue
        is_named = any(f"/{path}" in place for _, place, _ in claims["findings"])
        is_emptied = claims["partitions"][name]["stat"].get("segments") == 0
        if not _said(claims, name) or (left is None and not is_named and not is_emptied):
            yield f"{path}: of {size} bytes Kafka leaves {left}"


@_rule
def a_recovery_that_is_foretold_happens(claims: Values, answer: Values) -> Iterator[str]:
    for name, ours, _ in _both(claims, answer):
        text = ours["stat"].get("recovery") or ""
        found = re.search(r"cuts \S+/(\d+\.log)\S* at (\d+)", text)
        left = answer["files"].get(f"{name}/{found[1]}", [None, None])[1] if found else None
        if found and left not in {int(found[2]), None} and "may empty" not in text:
            yield f"{name}: {found[0]} is foretold, Kafka leaves {left}"


@_rule
def what_kafka_serves_is_given_or_named(claims: Values, answer: Values) -> Iterator[str]:
    for name, level, title, read, served in _reads(claims, answer):
        is_known = level == "read_committed" and _said(claims, name, *_DECIDING[level])  # "markers"
        is_named = read["error"] or read["words"] or is_known
        if {*served} - {*read["rows"]} and not is_named:
            yield f"{title}: {_apart(read['rows'], served)}"


@_rule
def what_kafka_does_not_serve_is_named(claims: Values, answer: Values) -> Iterator[str]:
    for name, level, title, read, served in _reads(claims, answer):
        is_named = read["error"] or read["words"] or _said(claims, name, *_DECIDING[level])
        if {*read["rows"]} - {*served} and not is_named:
            yield f"{title}: {_apart(read['rows'], served)}"


@_rule
def offsets_rise(claims: Values, answer: Values) -> Iterator[str]:
    for _, _, title, read, _ in _reads(claims, answer):
        offsets = [offset for offset, _ in read["rows"]]
        if offsets != sorted({*offsets}):
            yield title


@_rule
def times_are_looked_up_as_kafka_does(claims: Values, answer: Values) -> Iterator[str]:
    for name, ours, kafkas in _both(claims, answer):
        for at, offset in ours["times"].items():
            is_error = isinstance(offset, dict) or isinstance(kafkas["times"][at], str)
            is_said = _said(claims, name, "timeindex")
            if offset != kafkas["times"][at] and not is_error and not is_said:
                yield f"{name}: time {at} has offset {offset}, Kafka has {kafkas['times'][at]}"


@_rule
def errors_are_our_own(claims: Values, _: Values) -> Iterator[str]:
    for text in re.findall(r"foreign.*?text(.*?)\}", str(claims)):
        yield text[-300:]


@_rule
def reading_changes_no_file(claims: Values, _: Values) -> Iterator[str]:
    yield from claims["changed"]


def broken(claims: Values, answer: Values) -> dict[str, str]:
    """Return the rules that the claims break, each with the first text."""
    texts = {rule.__name__: next(rule(claims, answer), None) for rule in RULES}
    return {name: text for name, text in texts.items() if text is not None}


def judge(case: Case, original: Original, folder: Path) -> tuple[dict[str, str], Values]:
    """Return the rules that a case breaks, and the answer of Kafka."""
    ours, kafkas = folder / "ours", folder / "kafkas"
    asked = make(case, ours)
    subprocess.run(["cp", "-a", "--sparse=always", ours, kafkas], check=True)
    answer = original.answer(kafkas, asked)
    texts = broken(claims(ours, asked), answer)
    shutil.rmtree(ours)
    shutil.rmtree(kafkas)
    return texts, answer


def shrunk(case: Case, original: Original, folder: Path) -> Case:
    """Return the smallest case that breaks a rule that a case breaks."""
    rules = judge(case, original, folder)[0].keys()
    for less in case.smaller():
        if rules & judge(less, original, folder)[0].keys():
            return shrunk(less, original, folder)
    return case


def main(n: int, seed: int, kept: str | None = None) -> int:
    """Judge some cases from a seed on; print those that break a rule, and the distribution.

    Args:
        n: the number of cases.
        seed: of the first one.
        kept: a file with cases, one a line, which make the corpus anew.

    Returns:
        The number of cases that break a rule.
    """
    counts: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="judge-kafka-") as name:
        folder = Path(name)
        original = Original(folder)
        if kept is not None:
            cases = [Case.parse(line) for line in Path(kept).read_text().splitlines()]
            answers = {str(case): judge(case, original, folder)[1] for case in cases}
            CORPUS.write_bytes(lzma.compress(json.dumps(answers).encode(), preset=9))
        for number in range(seed, seed + n):
            case = draw(number)
            texts, answer = judge(case, original, folder)
            counts[f"{len(case.faults)} faults"] += 1
            counts["Kafka refuses"] += not answer["starts"]
            counts["Kafka cuts or deletes"] += answer["starts"] and bool(answer["files"])
            if texts:
                counts["break a rule"] += 1
                case = shrunk(case, original, folder)
                texts = judge(case, original, folder)[0]
                lines = [f"    {rule}: {text}" for rule, text in texts.items()]
                print(f"seed {number}: {case}", *lines, sep="\n", flush=True)  # noqa: T201
        original.close()
    text = "; ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(f"{text}; {n / (time.monotonic() - began) * 3600:.0f} an hour")  # noqa: T201
    return counts["break a rule"]


if __name__ == "__main__":
    given = dict(word.split("=") for word in sys.argv[1:])
    sys.exit(main(int(given.get("N", 100)), int(given.get("SEED", 1)), given.get("KEEP")) > 0)
