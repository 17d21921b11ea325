"""What we say of a store, as plain values.

Nothing is started for it: checks, reads, streams and commands run in this process. What one of them
says has a ``value``, or else ``error``, ``text`` and ``is_ours``, and always its ``warnings``.
"""

from __future__ import annotations

import contextlib
import filecmp
import logging
import os
import re
import shlex
import shutil
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

import rmqstore
from command_line import run
from judge import cases
from pyspark_rmqstore.options import parse_stream_options
from pyspark_rmqstore.stream_reader import RmqStoreStreamReader
from reading import state, time_limit
from rmqstore import MessageStore
from rmqstore.copying.copier import copy
from rmqstore.errors import Finding, RmqStoreError
from rmqstore.format.layout import MAX_V1_TOPIC_BYTES
from rmqstore.format.topics import is_system_topic
from rmqstore.inspect.broker_start import foresee, misplaced_files
from rmqstore.inspect.changes import plan_of
from rmqstore.inspect.describe import describe
from rmqstore.inspect.remedies import CheckedStore, by_kind, kind_of
from rmqstore.inspect.verify import verify
from rmqstore.read.request import parse_request
from rmqstore.read.store_ref import StoreRef
from rmqstore.source.store_source import StoreSource
from rmqstore.source.stream_offset import flattened
from rmqstore.storage.broker import retry

Claims = dict[str, Any]
Said = dict[str, Any]  # of one part
Rows = dict[str, list[list[Any]]]  # by queue: queue offset, physical offset, CRC-32 or reason
Batches = Iterable[pa.RecordBatch]

MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
SCANS = ("queue", "commitlog")
LIMIT = 60  # seconds for one part
_TYPES = {
    "topic": StringType, "queueId": IntegerType, "queueOffset": LongType,
    "commitLogOffset": LongType, "storeSize": IntegerType, "sysFlag": IntegerType,
}  # fmt: skip
_COLUMNS = list(_TYPES)
_SPARK_COLUMNS = StructType([StructField(name, kind()) for name, kind in _TYPES.items()])
_TRANSACTION, _WITHOUT_UNIT = 0xC, (4, 12)  # of sysFlag
_OF_STREAMS = {"commitlogs": "storePathCommitLog"}  # other names of arguments
_LOGGERS = [logging.getLogger(name) for name in ("rmqstore", "pyspark_rmqstore")]
_LMQ = "%LMQ%"
_TOPIC = rf"[%|\w-]{{1,{MAX_V1_TOPIC_BYTES}}}"  # that messages can be put to
_STRICTNESS = (("strict", True), ("lenient", False))  # whether data loss is an error
_AT_REST = 0.01  # seconds: it is not waited for as a store that a broker may be recovering


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
    folder = copies or root.with_name(f"{root.name}-copies")
    folder.mkdir()
    pauses = retry._QUIET_SECONDS, retry._PAUSE_SECONDS
    retry._QUIET_SECONDS = retry._PAUSE_SECONDS = _AT_REST
    try:
        return _claimed(root, options, whole, keys, folder)
    finally:
        retry._QUIET_SECONDS, retry._PAUSE_SECONDS = pauses


def _claimed(
    root: Path,
    options: Mapping[str, Any],
    whole: Path,
    keys: Iterable[tuple[str, str]],
    folder: Path,
) -> Claims:
    asking = _Asking(root, options, folder)
    before, memory = state(root), _Memory()
    claimed = asking.reads(keys) | {"follow": asking.follow(whole), "memory": memory.megabytes()}
    claimed["changed"] = _differences(before, state(root))
    claimed["rebuild"] = asking.rebuild()
    claimed["append"] = asking.append(claimed["stat"].get("value", []))
    claimed["copy"] = asking.copy()
    found = [Finding(**one) for one in claimed["verify"].get("value", [])]
    claimed["remedies"] = asking.remedies(found) if found else {}
    made = {name: folder / name for name in ("rebuilt", "appended")}
    claimed["copies"] = {name: str(path) for name, path in made.items() if path.exists()}
    return claimed


class _Listening(logging.Handler):
    """Keeps what is logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def __enter__(self) -> Self:
        for logger in _LOGGERS:
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for logger in _LOGGERS:
            logger.removeHandler(self)


def said(ask: Callable[[], object]) -> Said:
    """Return the value that is the answer to a question, or the error, and all warnings."""
    with _Listening() as heard:
        try:
            with time_limit(LIMIT):
                found: Said = {"value": ask()}
        except Exception as err:  # noqa: BLE001 - of whatever kind it is, a rule says what may be
            is_ours = isinstance(err, RmqStoreError)
            frame = traceback.extract_tb(err.__traceback__)[-1]
            text = str(err).partition("\n")[0]
            text = text if is_ours else f"{err!r} at {Path(frame.filename).name}:{frame.lineno}"
            found = {"error": type(err).__name__, "text": text, "is_ours": is_ours}
    return found | {"warnings": heard.texts}


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
        paths = [path for folder in folders for path in folder.glob("[0-9]" * 20)]
        small = [path for path in paths if path.is_file() and path.stat().st_size < 1 << 28]
        self._files = {int(path.name): path.read_bytes() for path in small}

    def rows(self, batches: Batches) -> dict[str, Rows]:
        """Return the rows of batches, and what is named as damaged; in "" those of no queue."""
        rows: Rows = {}
        damaged: Rows = {}
        for row in (row for batch in batches for row in batch.to_pylist()):
            is_known = row["topic"] is not None and (row["sysFlag"] or 0) & _TRANSACTION
            has_queue = row["topic"] is not None and is_known not in _WITHOUT_UNIT
            queue = f"{row['topic']}-{row['queueId']}" if has_queue else ""
            place = [row["queueOffset"], row["commitLogOffset"]]
            if (reason := row.get("_corrupt_record")) is not None:
                damaged.setdefault(queue, []).append([*place, reason])
            else:
                crc = self._crc(place[1], row["storeSize"])
                rows.setdefault(queue, []).append([*place, crc])
        return {"rows": rows, "damaged": damaged}

    def _crc(self, physical_offset: int, size: int) -> int | None:
        """Return the CRC-32 of a record; None for one that is not in these files.

        Of files that overlap, the record names its place in one.
        """
        starts = sorted(start for start in self._files if start <= physical_offset)
        found = [self._files[start][physical_offset - start :][:size] for start in starts]
        whole = [data for data in found if len(data) == size]
        whole.sort(key=lambda data: int.from_bytes(data[28:36]) == physical_offset)
        return zlib.crc32(whole[-1]) if whole else None


class _Asking:
    """Asks our library about one store, and copies of it.

    Attributes:
        folder: has the copies.
    """

    def __init__(self, root: Path, options: Mapping[str, Any], folder: Path) -> None:
        self._root, self._options, self.folder = root, options, folder

    def _log(self, root: Path) -> _Log:
        named = cases.located(self._options, root).get("commitlogs", [root / "commitlog"])
        return _Log([*named, *sorted(root.glob("dledger-*/data"))])

    def _open(self, root: Path) -> MessageStore:
        return rmqstore.open(root, **cases.located(self._options, root))

    def _folders(self, root: Path) -> dict[str, Any]:
        """Return the options of a writer, which has none for tiers."""
        located = cases.located(self._options, root)
        return {name: value for name, value in located.items() if name != "tiered"}

    def _of_store(self, ask: Callable[[MessageStore], object], root: Path | None = None) -> Said:
        def opened() -> object:
            with self._open(root or self._root) as store:
                return ask(store)

        return said(opened)

    def reads(self, keys: Iterable[tuple[str, str]]) -> Claims:
        """Return what the checks, the views, the reads and the look-ups say."""
        asked: dict[str, Callable[[MessageStore], object]] = {
            "verify": _checked, "log end": _log_end, "describe": _described, "stat": _queues,
            "groups": _groups,
        }  # fmt: skip
        log = self._log(self._root)
        for scan in SCANS:
            for mode in MODES:
                asked[f"{scan} {mode}"] = partial(_scanned, log=log, scan=scan, mode=mode)
        for name, truncates in (("plan", False), ("plan to truncate", True)):
            asked[name] = partial(_planned, truncates=truncates)
        of_keys = {
            f"{topic} {key}": self._of_store(partial(_found, topic=topic, key=key))
            for topic, key in keys
        }
        return {name: self._of_store(ask) for name, ask in asked.items()} | {"keys": of_keys}

    def follow(self, whole: Path) -> dict[str, Any]:
        """Return what those that follow the store say when they look again.

        ``whole`` and ``half`` is how much they had read. A tail goes on, and a stream begins again
        with the offset of its checkpoint, each with data loss as an error and without. ``on`` is a
        stream that goes on as a tail does, with what it remembers of the store.
        """
        root = self.folder / "followed"
        shutil.copytree(whole, root, copy_function=_link)
        located = cases.located(self._options, root)
        tails = {name: _Tail(located, root, is_strict) for name, is_strict in _STRICTNESS}
        streams = {amount: _Stream(located, root) for amount in ("whole", "half")}
        going_on = {name: _Stream(located, root) for name in tails}
        before, log = {}, self._log(root)
        for name, tail in tails.items():
            before[f"tail whole {name}"] = said(partial(_polled, log, tail.poll))
        for name, is_strict in _STRICTNESS:
            begin = partial(_polled, log, going_on[name].begin, is_strict)
            before[f"stream on {name}"] = said(begin)
        for amount, stream in streams.items():
            first = said(partial(_polled, log, stream.first, amount == "half"))
            before |= {f"stream {amount} {name}": first for name in tails}
        _make_alike(self._root, root)
        after, log = {}, self._log(root)
        for name, tail in tails.items():
            after[f"tail whole {name}"] = said(partial(_polled, log, tail.poll))
            tail.close()
            begun = before[f"stream on {name}"]
            go_on = partial(_polled, log, going_on[name].go_on)
            after[f"stream on {name}"] = begun if "error" in begun else said(go_on)
        for amount, stream in streams.items():
            for name, is_strict in _STRICTNESS:
                again = said(partial(_polled, log, stream.again, is_strict))
                after[f"stream {amount} {name}"] = again
        shutil.rmtree(root)
        return {name: {"before": before[name], "after": after[name]} for name in after}

    def _done(self, name: str, act: Callable[[Path], object]) -> Said:
        """Return what comes of an act on a copy, and the files that it changes."""
        root = self.folder / name
        if not root.exists():
            cases.copy(self._root, root)
        before = state(root)
        return said(partial(act, root)) | {"changed": _differences(before, state(root))}

    def rebuild(self) -> Said:
        """Return what comes of a rebuild.

        If good records follow the end of the log, that is cut, as is advised then.
        """
        found: Said = {}
        for truncates in (False, True):
            found = self._done("rebuilt", partial(self._build, truncates=truncates))
            if "value" in found:
                after = self._of_store(_checked, self.folder / "rebuilt")
                return found | {"truncates": truncates, "verify": after}
            shutil.rmtree(self.folder / "rebuilt")
            if found["error"] != "CorruptRecordError":
                break
        return found

    def _build(self, root: Path, *, truncates: bool) -> list[dict[str, Any]]:
        arguments = self._folders(root) | {"truncate": truncates, "broker_stopped": True}
        with rmqstore.open(root, mode="a", **arguments) as writer:
            return [_told(one) for one in writer.rebuild()]

    def append(self, queues: Iterable[Mapping[str, Any]]) -> Said:
        """Return what a read gives after one message was appended to each ordinary queue."""
        ordinary = [
            {"topic": row["topic"], "queueId": row["queueId"], "body": b"appended"}
            for row in queues
            if not is_system_topic(row["topic"]) and not row["topic"].startswith(_LMQ)
            if re.fullmatch(_TOPIC, row["topic"]) and row["queueId"] >= 0
        ]
        found = self._done("appended", partial(self._append, rows=ordinary))
        if "error" in found:
            shutil.rmtree(self.folder / "appended")
        return found | {"queues": [f"{row['topic']}-{row['queueId']}" for row in ordinary]}

    def _append(self, root: Path, rows: list[dict[str, Any]]) -> dict[str, Rows]:
        kinds = [("topic", pa.string()), ("queueId", pa.int32()), ("body", pa.binary())]
        with rmqstore.open(root, mode="a", broker_stopped=True, **self._folders(root)) as writer:
            writer.append(pa.Table.from_pylist(rows, pa.schema(kinds)))
        with self._open(root) as store:
            return _scanned(store, self._log(root), "queue", "PERMISSIVE")

    def copy(self) -> Said:
        """Return what a read gives of a copy that we make, in mode PERMISSIVE."""
        target = self.folder / "copied"

        def make() -> dict[str, Rows]:
            copy(self._root, target, verify=False, **self._folders(self._root))
            located = cases.located(self._options, self._root)
            tiered = {name: value for name, value in located.items() if name == "tiered"}
            with rmqstore.open(target, **tiered) as store:
                return _scanned(store, _Log([target / "commitlog"]), "queue", "PERMISSIVE")

        found = said(make)
        shutil.rmtree(target, ignore_errors=True)
        return found

    def remedies(self, findings: list[Finding]) -> dict[str, Said]:
        """Return what comes of each command that is advised, typed as it is printed."""
        root, exported = self.folder / "store", self.folder / "messages.parquet"
        tiered = self._options.get("tiered")
        cases.copy(self._root, root)
        with self._open(root) as store:
            source = None if tiered is None else str(root / tiered)
            checked = CheckedStore.of(store.paths, str(root), source)
        commands = {
            command: kind
            for kind, remedy, _ in by_kind(findings)
            for _, command in remedy.steps(checked)
            if command
        }
        done = {}
        for command, kind in commands.items():
            with contextlib.chdir(self.folder):
                found = self._done(root.name, lambda _, typed=command: _typed(typed))
            if " rebuild " in command:
                found["verify"] = self._of_store(_checked, root)
            if exported.exists():
                found["rows"] = pq.read_metadata(exported).num_rows
                exported.unlink()
            done[command.replace(str(root), "PATH")] = {"kind": kind, **found}
            shutil.rmtree(root)
        return done


# What is asked of an open store.


def _told(finding: Finding) -> dict[str, Any]:
    unserved = [[run.start, run.stop] for run in finding.unserved]
    return finding._asdict() | {"unserved": unserved, "kind": kind_of(finding)}


def _checked(store: MessageStore) -> list[dict[str, Any]]:
    return [_told(one) for one in verify(store)]


def _log_end(store: MessageStore) -> int | None:
    """Return where a broker that starts ends the log; None if that is not foreseen."""
    parts = store.parts
    if not parts.has_store:
        return None
    start = foresee(parts.paths, parts.log, parts.ends, [*misplaced_files(parts.paths)])
    return None if start is None else start.log_end.physical_offset


def _described(store: MessageStore) -> dict[str, Any]:
    (row,) = describe([store]).to_pylist()
    return {name: row[name] for name in ("state", "minOffset", "maxOffset", "reason")}


def _queues(store: MessageStore) -> list[dict[str, Any]]:
    columns = ["topic", "queueId", "minOffset", "maxOffset", "reason"]
    view = store.view("queues", columns=columns, include_system_topics=True)
    return list(view.read_all().to_pylist())


def _groups(store: MessageStore) -> dict[str, int]:
    columns = ["consumerGroup", "topic", "queueId", "consumerOffset"]
    rows = store.view("groups", columns=columns).read_all().to_pylist()
    return {
        "{consumerGroup} {topic}-{queueId}".format(**row): row["consumerOffset"] for row in rows
    }


def _found(store: MessageStore, topic: str, key: str) -> list[int]:
    found = store.query(topic, key, scan_uncovered=True)
    return sorted(message.commitLogOffset for message in found)


def _scanned(store: MessageStore, log: _Log, scan: str, mode: str) -> dict[str, Rows]:
    others = {"include_system_topics": True, "fail_on_data_loss": mode == "FAILFAST"}
    return log.rows(store.scan(scan=scan, columns=[*_COLUMNS, "body"], mode=mode, **others))


def _planned(store: MessageStore, *, truncates: bool) -> dict[str, Any]:
    plan = plan_of(store.paths, truncate=truncates, broker_stopped=True)
    return {"log_start": plan.log_start, "log_end": plan.log_end, "lines": plan.lines()}


def _typed(command: str) -> dict[str, Any]:
    """Return how a command of ours ends."""
    shown = run(*shlex.split(command)[1:])
    if shown.exception is not None and not isinstance(shown.exception, SystemExit):
        raise shown.exception
    return {"code": shown.exit_code, "stderr": shown.stderr[-1000:]}


# Those that follow the store.


def _polled(log: _Log, poll: Callable[..., Batches], *asked: bool) -> dict[str, Rows]:
    return log.rows(poll(*asked))


class _Tail:
    """What ``dump --follow`` does."""

    def __init__(self, located: Mapping[str, Any], root: Path, is_strict: bool) -> None:
        arguments = {
            "columns": _COLUMNS, "starting_offsets": "earliest", "include_system_topics": True,
            "mode": "FAILFAST" if is_strict else "DROPMALFORMED", "fail_on_data_loss": is_strict,
        }  # fmt: skip
        folders = {**located}
        tiered = folders.pop("tiered", None)
        ref = StoreRef(str(root), folders=folders, tiered=tiered and str(tiered))
        self._stream = StoreSource((ref,)).follow(parse_request(arguments, streaming=True))

    def poll(self) -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            yield from self._stream.messages()

    def close(self) -> None:
        self._stream.close()


class _Stream:
    """What a query of Spark does that begins again with the offset that it has."""

    def __init__(self, located: Mapping[str, Any], root: Path) -> None:
        given: dict[str, Any] = {
            "path": root, "startingOffsets": "earliest", "includeSystemTopics": "true",
        }  # fmt: skip
        given |= {_OF_STREAMS.get(name, name): value for name, value in located.items()}
        self._given = {
            name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in given.items()
        }
        self._offset: dict[str, Any] = {}
        self._closing = contextlib.ExitStack()

    def first(self, is_half: bool) -> Iterator[pa.RecordBatch]:
        """Yield the first micro-batch: everything, or half of it."""
        limit: dict[str, str] = {}
        if is_half:
            with self._reader() as reader:
                end = reader.next_offset(reader.initialOffset(), is_limited=False)
            n_rows = sum(row[-1] for row in flattened(end["queues"], 2))
            limit = {"maxOffsetsPerTrigger": str(max(n_rows // 2, 1))}
        with self._reader(**limit) as reader:
            start = reader.initialOffset()
            self._offset = reader.next_offset(start, is_limited=is_half)
            yield from _micro_batch(reader, start, self._offset)

    def again(self, is_strict: bool) -> Iterator[pa.RecordBatch]:
        """Yield the micro-batch after the first one, of another reader."""
        with self._reader(**_of(is_strict)) as reader:
            yield from self._after(self._offset, reader)

    def begin(self, is_strict: bool) -> Iterator[pa.RecordBatch]:
        """Yield everything; the reader stays open."""
        self._open = self._closing.enter_context(self._reader(**_of(is_strict)))
        yield from self._after(self._open.initialOffset(), self._open)

    def go_on(self) -> Iterator[pa.RecordBatch]:
        """Yield the next micro-batch of the open reader, and close that."""
        with self._closing:
            yield from self._after(self._end, self._open)

    def _after(
        self, start: dict[str, Any], reader: RmqStoreStreamReader
    ) -> Iterator[pa.RecordBatch]:
        self._end = reader.next_offset(start, is_limited=False)
        yield from _micro_batch(reader, start, self._end)

    @contextlib.contextmanager
    def _reader(self, **others: str) -> Iterator[RmqStoreStreamReader]:
        lenient = {"mode": "DROPMALFORMED", "failOnDataLoss": "false"}
        options = parse_stream_options(self._given | lenient | others)
        reader = RmqStoreStreamReader(_SPARK_COLUMNS, options)
        try:
            yield reader
        finally:
            reader.stop()


def _of(is_strict: bool) -> dict[str, str]:
    mode = "FAILFAST" if is_strict else "DROPMALFORMED"
    return {"mode": mode, "failOnDataLoss": str(is_strict).lower()}


def _micro_batch(
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
    wanted = {path.relative_to(source): path for path in sorted(source.rglob("*"))}
    for path in sorted(target.rglob("*"), reverse=True):
        there = wanted.get(path.relative_to(target))
        kind = (path.is_dir(), path.is_symlink())
        if there is None or kind != (there.is_dir(), there.is_symlink()):
            cases._remove(path)
    for name, there in wanted.items():
        path, aside = target / name, (target / name).with_name("new.aside")
        if there.is_symlink():
            path.unlink(missing_ok=True)
            path.symlink_to(there.readlink())
        elif there.is_dir():
            path.mkdir(exist_ok=True)
        elif not path.exists() or not filecmp.cmp(there, path, shallow=False):
            _link(str(there), str(aside))
            aside.replace(path)


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return the files that are there before and not after, the reverse, or differ."""
    paths = before.keys() | after.keys()
    return sorted(path for path in paths if before.get(path) != after.get(path))
