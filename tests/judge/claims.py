"""What we say of a store, as plain values: each part of it a value or an error, and its warnings.

Nothing is started for it: reads, checks, streams and commands run in this process.
"""

from __future__ import annotations

import contextlib
import filecmp
import logging
import os
import shlex
import shutil
import signal
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

import rmqstore
from judge import cases
from pyspark_rmqstore.offsets import flattened
from pyspark_rmqstore.options import parse_stream_options
from pyspark_rmqstore.stream_reader import RmqStoreStreamReader
from reading import state
from rmqstore import MessageStore
from rmqstore.cli import main
from rmqstore.copying.copier import copy
from rmqstore.errors import Finding, RmqStoreError
from rmqstore.format.topics import is_system_topic
from rmqstore.inspect.broker_start import foresee
from rmqstore.inspect.changes import plan_of
from rmqstore.inspect.describe import describe
from rmqstore.inspect.remedies import CheckedStore, by_kind, kind_of
from rmqstore.inspect.verify import verify
from rmqstore.read.request import parse_request
from rmqstore.read.tailing import TailingScan
from rmqstore.storage.broker import retry

Claims = dict[str, Any]
Said = dict[str, Any]  # of one part: "value", or "error", "text" and "is_ours"; "warnings"
Rows = dict[str, list[list[Any]]]
T = TypeVar("T")

MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
SCANS = ("queue", "commitlog")
LIMIT = 60  # seconds for one part
_COLUMNS = ["topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "sysFlag"]
_SPARK_COLUMNS = StructType(
    [
        StructField(name, kind())
        for name, kind in zip(
            _COLUMNS,
            (StringType, IntegerType, LongType, LongType, IntegerType, IntegerType),
            strict=True,
        )
    ]
)
_CORRUPT = "_corrupt_record"
_OF_STREAMS = {"commitlogs": "storePathCommitLog", "tiered": "tiered", "conf": "conf"}
_LOGGERS = ("rmqstore", "pyspark_rmqstore")
_LMQ = "%LMQ%"
_STRICTNESS = {"strict": True, "lenient": False}  # whether data loss is an error
# A store at rest is not waited for as long as one that a broker may be recovering.
retry._QUIET_SECONDS = retry._PAUSE_SECONDS = 0.01


def claims(
    root: Path,
    options: Mapping[str, Any],
    whole: Path,
    keys: Iterable[tuple[str, str]] = (),
    copies: Path | None = None,
) -> Claims:
    """Return all that we say of a store, and of copies that were repaired or appended to.

    Args:
        root: the store, which is only read.
        options: arguments of ``rmqstore.open``; folders relative to ``root``.
        whole: the same store before anything befell it, which streams have read.
        keys: topics and keys to look up.
        copies: a folder for copies; ``copies`` of the claims names those that the original is
            to open, ``rebuilt`` and ``appended``.
    """
    before, growth = state(root), _Memory()
    folder = copies or root.with_name(f"{root.name}-copies")
    folder.mkdir()
    asking = _Asking(root, options, folder)
    claimed = asking.reads(keys)
    claimed["follow"] = asking.follow(whole)
    claimed["memory"] = growth.megabytes()
    claimed["changed"] = _differences(before, state(root))
    findings = claimed["verify"].get("value", [])
    claimed["rebuild"] = asking.rebuild()
    claimed["append"] = asking.append(claimed["stat"].get("value", []))
    claimed["copy"] = asking.copy()
    claimed["remedies"] = asking.remedies([Finding(**one) for one in findings])
    claimed["copies"] = {
        name: str(path) for name in ("rebuilt", "appended") if (path := folder / name).exists()
    }
    return claimed


# Asking, and what comes of it.


class _Listening(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def __enter__(self) -> _Listening:
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)


def said(ask: Callable[[], object]) -> Said:
    """Return the value that a question has as its answer, or the error, and all warnings."""
    with _Listening() as heard:
        try:
            with _limited():
                found: Said = {"value": ask()}
        except Exception as err:
            is_ours = isinstance(err, RmqStoreError)
            text = str(err).partition("\n")[0] if is_ours else _where(err)
            found = {"error": type(err).__name__, "text": text, "is_ours": is_ours}
    return found | {"warnings": heard.texts}


def _where(err: BaseException) -> str:
    """Return the text of an error that is not ours, and the place that raised it."""
    trace = err.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = None if trace is None else trace.tb_frame
    place = "" if frame is None else f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return f"{err!r}{place}"


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Raise TimeoutError after a while, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer in {LIMIT} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class _Memory:
    """The memory that this process takes beyond what it had."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._start = self._read("VmRSS")

    def megabytes(self) -> int:
        return (self._read("VmHWM") - self._start) >> 10

    @staticmethod
    def _read(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


class _Log:
    """The bytes of records, by their physical offsets, as they lie in the files of a log."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._files = {
            int(path.name): path.read_bytes()
            for folder in folders
            if folder.is_dir()
            for path in sorted(folder.iterdir())
            if path.name.isdigit() and path.is_file() and path.stat().st_size < 1 << 28
        }

    def crc(self, physical_offset: int, size: int) -> int | None:
        """Return the CRC-32 of a record; None for one that is not in these files."""
        start = max((start for start in self._files if start <= physical_offset), default=None)
        if start is None:
            return None
        data = self._files[start][physical_offset - start :][:size]
        return zlib.crc32(data) if len(data) == size else None


class _Rows:
    """Rows of reads, by queue; in "" those of no queue, as half messages are."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self.sound: Rows = {}  # queue offset, physical offset, CRC-32
        self.damaged: Rows = {}  # queue offset, physical offset, reason

    def add(self, batches: Iterable[pa.RecordBatch]) -> _Rows:
        for batch in batches:
            for row in batch.select(
                [name for name in (*_COLUMNS, _CORRUPT) if name in batch.schema.names]
            ).to_pylist():
                has_queue = row["topic"] is not None and (row["sysFlag"] or 0) & 0xC in (0, 8)
                queue = f"{row['topic']}-{row['queueId']}" if has_queue else ""
                place = [row["queueOffset"], row["commitLogOffset"]]
                if row.get(_CORRUPT) is not None:
                    self.damaged.setdefault(queue, []).append([*place, row[_CORRUPT]])
                else:
                    crc = self._log.crc(place[1], row["storeSize"])
                    self.sound.setdefault(queue, []).append([*place, crc])
        return self

    def told(self) -> dict[str, Rows]:
        return {"rows": self.sound, "damaged": self.damaged}


class _Asking:
    """Asks our library about one store, and copies of it.

    Attributes:
        folder: has the copies.
    """

    def __init__(self, root: Path, options: Mapping[str, Any], folder: Path) -> None:
        self._root, self._options, self.folder = root, options, folder
        self._log = _Log(self._log_folders(root))

    def _log_folders(self, root: Path) -> list[Path]:
        named = cases.located(self._options, root).get("commitlogs", [root / "commitlog"])
        return [*named, *sorted(root.glob("dledger-*/data"))]

    def _open(self, root: Path | None = None) -> MessageStore:
        root = root or self._root
        return rmqstore.open(root, **cases.located(self._options, root))

    def _folders(self, root: Path) -> dict[str, Any]:
        """Return the options for a writer, which has none for tiers."""
        located = cases.located(self._options, root)
        return {name: value for name, value in located.items() if name != "tiered"}

    def _of_store(self, ask: Callable[[MessageStore], object], root: Path | None = None) -> Said:
        def opened() -> object:
            with self._open(root) as store:
                return ask(store)

        return said(opened)

    def reads(self, keys: Iterable[tuple[str, str]]) -> Claims:
        """Return what the checks, the views, the reads and the look-ups say."""
        claimed: Claims = {
            "verify": self._of_store(_checked),
            "log end": self._of_store(_log_end),
            "describe": self._of_store(_described),
            "stat": self._of_store(_queues),
            "topics": self._of_store(lambda store: store.topics()),
            "groups": self._of_store(_groups),
            "keys": {
                f"{topic} {key}": self._of_store(partial(_found, topic=topic, key=key))
                for topic, key in keys
            },
        }
        for by in SCANS:
            for mode in MODES:
                claimed[f"{by} {mode}"] = self._of_store(partial(self._scanned, by=by, mode=mode))
        return claimed

    def _scanned(self, store: MessageStore, by: str, mode: str) -> dict[str, Rows]:
        batches = store.scan(
            scan=by,
            columns=[*_COLUMNS, "body"],
            mode=mode,
            include_system_topics=True,
            fail_on_data_loss=mode == "FAILFAST",
        )
        return _Rows(self._log).add(batches).told()

    # A stream and `dump --follow`, which read the store before anything befell it.

    def follow(self, whole: Path) -> dict[str, Any]:
        """Return what those that follow the store say when they look again.

        ``whole`` and ``half``: how much they had read. A tail goes on, and a stream begins again
        with the offset of its checkpoint, each with data loss as an error and without.
        """
        followed = self.folder / "followed"
        shutil.copytree(whole, followed, copy_function=_link)
        log = _Log(self._log_folders(followed))
        tails = {
            f"tail whole {strictness}": _Tail(self._open(followed), is_strict=is_strict)
            for strictness, is_strict in _STRICTNESS.items()
        }
        streams = {
            amount: _Stream(cases.located(self._options, followed), followed)
            for amount in ("whole", "half")
        }
        try:
            before = {
                name: said(partial(_polled, tail.poll(), log)) for name, tail in tails.items()
            }
            for amount, stream in streams.items():
                first = said(partial(_polled, stream.first(is_half=amount == "half"), log))
                before |= {f"stream {amount} {strictness}": first for strictness in _STRICTNESS}
            _make_alike(self._root, followed)
            log = _Log(self._log_folders(followed))
            after = {name: said(partial(_polled, tail.poll(), log)) for name, tail in tails.items()}
            for amount, stream in streams.items():
                for strictness, is_strict in _STRICTNESS.items():
                    after[f"stream {amount} {strictness}"] = said(
                        partial(_polled, stream.again(is_strict=is_strict), log)
                    )
        finally:
            for tail in tails.values():
                tail.close()
        shutil.rmtree(followed)
        return {name: {"before": before[name], "after": after[name]} for name in after}

    # Copies that are changed.

    def _copied(self, name: str) -> Path:
        made = self.folder / name
        cases.copy(self._root, made)
        return made

    def rebuild(self) -> Claims:
        """Return the plan of a rebuild, whether it was refused, and what a check then finds.

        If good records follow the end of the log, that is cut, as is advised then.
        """
        found: Claims = {}
        for truncates in (False, True):
            root = self._copied("rebuilt")
            before, folders = state(root), self._folders(root)
            arguments = {"truncate": truncates, "broker_stopped": True}

            found = {"truncates": truncates}
            found["plan"] = said(partial(_planned, root, folders, arguments))
            found["planning changed"] = _differences(before, state(root))
            found["done"] = said(partial(_built, root, folders, arguments))
            if "value" in found["done"]:
                found["verify"] = self._of_store(_checked, root)
                return found
            found["changed"] = _differences(before, state(root))
            shutil.rmtree(root)
            if found["done"]["error"] != "CorruptRecordError":
                break
        return found

    def append(self, queues: Sequence[Mapping[str, Any]]) -> Said:
        """Return what a writer of ours says that appends one message to each ordinary queue."""
        chosen = [
            (row["topic"], row["queueId"])
            for row in queues
            if not is_system_topic(row["topic"]) and not row["topic"].startswith(_LMQ)
        ]
        if not chosen:
            return {"error": "", "text": "there is no queue", "is_ours": True, "warnings": []}
        root = self._copied("appended")
        before, folders = state(root), self._folders(root)

        def append() -> dict[str, Any]:
            topics, ids = zip(*chosen, strict=True)
            table = pa.table(
                {
                    "topic": topics,
                    "queueId": pa.array(ids, pa.int32()),
                    "body": pa.array([b"appended"] * len(ids), pa.binary()),
                }
            )
            with rmqstore.open(root, mode="a", broker_stopped=True, **folders) as writer:
                writer.append(table)
            with self._open(root) as store:
                return self._scanned(store, "queue", "PERMISSIVE")

        found = said(append)
        if "error" in found:
            found["changed"] = _differences(before, state(root))
            shutil.rmtree(root)
        return found | {"queues": [f"{topic}-{queue_id}" for topic, queue_id in chosen]}

    def copy(self) -> Said:
        """Return what a read of a copy gives that was made by us, in mode PERMISSIVE."""
        target = self.folder / "copied"

        def make() -> dict[str, Rows]:
            copy(self._root, target, verify=False, **self._folders(self._root))
            options = self._options if "tiered" in self._options else {}
            with rmqstore.open(target, **cases.located(options, self._root)) as store:
                return self._scanned(store, "queue", "PERMISSIVE")

        found = said(make)
        shutil.rmtree(target, ignore_errors=True)
        return found

    def remedies(self, findings: Sequence[Finding]) -> dict[str, Claims]:
        """Return what comes of each command that is advised, typed as it is printed."""
        root = self.folder / "store"
        tiered = self._options.get("tiered")
        if not findings:
            return {}
        cases.copy(self._root, root)
        with self._open(root) as store:
            named = None if tiered is None else str(root / tiered)
            checked = CheckedStore.of(store.paths, str(root), named)
        commands = {
            command: kind
            for kind, remedy, _ in by_kind(findings)
            for _, command in remedy.steps(checked)
            if command
        }
        done = {}
        for command, kind in commands.items():
            if not root.exists():
                cases.copy(self._root, root)
            with contextlib.chdir(self.folder):
                done[command.replace(str(root), "PATH")] = {"kind": kind, **self._typed(command)}
            shutil.rmtree(root)
        return done

    def _typed(self, command: str) -> Claims:
        """Return how a command ends, and what it leaves."""
        root, exported = self.folder / "store", self.folder / "messages.parquet"
        before = state(root)
        _, verb, *words = shlex.split(command)

        def run() -> dict[str, Any]:
            shown = CliRunner().invoke(main, [verb, *words])
            if shown.exception is not None and not isinstance(shown.exception, SystemExit):
                raise shown.exception
            return {"code": shown.exit_code, "stderr": shown.stderr[-2000:]}

        found: Claims = said(run) | {"changed": _differences(before, state(root))}
        if exported.exists():
            found["rows"] = pq.read_metadata(exported).num_rows
            exported.unlink()
        if verb == "rebuild":
            found["verify"] = self._of_store(_checked, root)
        return found


# What is asked of an open store.


def _told(finding: Finding) -> dict[str, Any]:
    unserved = [[run.start, run.stop] for run in finding.unserved]
    return finding._asdict() | {"unserved": unserved}


def _checked(store: MessageStore) -> list[dict[str, Any]]:
    return [_told(one) | {"kind": kind_of(one)} for one in verify(store)]


def _log_end(store: MessageStore) -> int | None:
    """Return where a broker that starts ends the log; None for one that is not foreseen."""
    parts = store.parts
    if not parts.has_store:
        return None
    start = foresee(parts.paths, parts.log, parts.ends)
    return None if start is None else start.log_end.physical_offset


def _described(store: MessageStore) -> dict[str, Any]:
    (row,) = describe([store]).to_pylist()
    return {name: row[name] for name in ("state", "minOffset", "maxOffset", "topics", "reason")}


def _queues(store: MessageStore) -> list[dict[str, Any]]:
    columns = ["topic", "queueId", "minOffset", "maxOffset", "reason"]
    scan = store.view("queues", columns=columns, include_system_topics=True)
    return scan.read_all().to_pylist()


def _found(store: MessageStore, topic: str, key: str) -> list[int]:
    return sorted(message.commitLogOffset for message in store.query(topic, key))


def _groups(store: MessageStore) -> dict[str, int]:
    columns = ["consumerGroup", "topic", "queueId", "consumerOffset"]
    rows = store.view("groups", columns=columns).read_all().to_pylist()
    return {
        f"{row['consumerGroup']} {row['topic']}-{row['queueId']}": row["consumerOffset"]
        for row in rows
    }


# What is done with copies.


def _planned(
    root: Path, folders: Mapping[str, Any], arguments: Mapping[str, bool]
) -> dict[str, Any]:
    with rmqstore.open(root, **folders) as store:
        planned = plan_of(store.paths, **arguments)
    return {"log_start": planned.log_start, "log_end": planned.log_end, "lines": planned.lines()}


def _built(
    root: Path, folders: Mapping[str, Any], arguments: Mapping[str, bool]
) -> list[dict[str, Any]]:
    with rmqstore.open(root, mode="a", **folders, **arguments) as writer:
        return [_told(one) for one in writer.rebuild()]


# Those that follow a store.


def _polled(batches: Iterable[pa.RecordBatch], log: _Log) -> dict[str, Rows]:
    return _Rows(log).add(batches).told()


class _Tail:
    """What ``dump --follow`` does."""

    def __init__(self, store: MessageStore, *, is_strict: bool) -> None:
        self._store = store
        request = parse_request(
            {
                "columns": _COLUMNS,
                "starting_offsets": "earliest",
                "include_system_topics": True,
                "mode": "FAILFAST" if is_strict else "DROPMALFORMED",
                "fail_on_data_loss": is_strict,
            },
            streaming=True,
        )
        self._scan = TailingScan(store.parts, request)

    def poll(self) -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            yield from self._scan.messages()

    def close(self) -> None:
        self._store.close()


class _Stream:
    """What a query of Spark does: each time it begins again with the offset that it has."""

    def __init__(self, located: Mapping[str, Any], root: Path) -> None:
        self._given = {
            "path": str(root), "startingOffsets": "earliest", "includeSystemTopics": "true",
        } | {
            _OF_STREAMS[name]: ",".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in located.items()
        }  # fmt: skip
        self._offset: dict[str, Any] = {}

    def first(self, *, is_half: bool) -> Iterator[pa.RecordBatch]:
        """Yield the first micro-batch: everything, or half of it."""
        limit: dict[str, str] = {}
        with self._reader(is_strict=False) as reader:
            end = reader.next_offset(reader.initialOffset(), is_limited=False)
        if is_half:
            n_rows = sum(row[-1] for row in flattened(end["queues"], 2))
            limit = {"maxOffsetsPerTrigger": str(max(n_rows // 2, 1))}
        with self._reader(is_strict=False, **limit) as reader:
            start = reader.initialOffset()
            self._offset = reader.next_offset(start, is_limited=is_half)
            yield from self._rows(reader, start, self._offset)

    def again(self, *, is_strict: bool) -> Iterator[pa.RecordBatch]:
        """Yield the micro-batch after the first one."""
        with self._reader(is_strict=is_strict) as reader:
            end = reader.next_offset(self._offset, is_limited=False)
            yield from self._rows(reader, self._offset, end)

    @contextlib.contextmanager
    def _reader(self, *, is_strict: bool, **limit: str) -> Iterator[RmqStoreStreamReader]:
        mode = "FAILFAST" if is_strict else "DROPMALFORMED"
        given = self._given | limit | {"mode": mode, "failOnDataLoss": str(is_strict).lower()}
        reader = RmqStoreStreamReader(_SPARK_COLUMNS, parse_stream_options(given))
        try:
            yield reader
        finally:
            reader.stop()

    @staticmethod
    def _rows(
        reader: RmqStoreStreamReader, start: dict[str, Any], end: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        if start != end:
            for part in reader.partitions(start, end):
                yield from reader.read(part)


# Files.


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def _make_alike(source: Path, target: Path) -> None:
    """Put files in the place of those that differ, as when a folder is restored."""
    wanted = {path.relative_to(source) for path in source.rglob("*")}
    for path in sorted(target.rglob("*"), reverse=True):
        there = source / path.relative_to(target)
        is_same = path.is_dir() == there.is_dir() and path.is_symlink() == there.is_symlink()
        if path.relative_to(target) in wanted and is_same:
            continue
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in sorted(wanted):
        path, there = target / name, source / name
        if there.is_symlink():
            path.unlink(missing_ok=True)
            path.symlink_to(there.readlink())
        elif there.is_dir():
            path.mkdir(exist_ok=True)
        elif not path.exists() or not filecmp.cmp(there, path, shallow=False):
            new = path.with_name("new.aside")
            _link(str(there), str(new))
            new.replace(path)


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return the files that are there before and not after, the reverse, or differ."""
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )
