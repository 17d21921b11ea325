"""What a read gives, as JSON that two versions of the code can be compared by.

Tasks are described by what lies in them, whatever the classes and fields are called that hold it:
ranges of queues and of the log, numbers such as places of records, marks and tables.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as source_api

import rmqstore
from connector.engine import pushdown_worker
from pyspark_rmqstore.source import RmqStoreDataSource
from recorder_cases import (
    AVAILABLE_NOW,
    BATCH,
    CALL,
    CALLS,
    COUNT,
    FILTERS,
    IN_PYTHON,
    OF_PYTHON,
    PUSHED,
    RESTART,
    Case,
    Options,
    Place,
    filled,
)
from rmqstore.errors import OptionError, RmqStoreError
from rmqstore.query.arguments import FolderArguments
from rmqstore.query.options import ALL_READ_OPTIONS

Outcome = dict[str, Any]

_OPTIONS = {option.name: option for option in ALL_READ_OPTIONS}
_OF_OPEN = {"broker_name", "tiered", "ignore_log_end", "storage_options"}
_OF_OPEN |= FolderArguments.__annotations__.keys()
_IN_COMMAS = ("commitlogs", "dledger_logs")
# What a file takes on the disk depends on the disk.
_NOT_COMPARED = ("allocated",)
_SHORT = 200


def digest_of(table: pa.Table, clean: Callable[[pa.Array], pa.Array]) -> str:
    """Return a hash of rows in their order, however they are divided into batches.

    Args:
        table: the rows.
        clean: returns a column of texts without what differs from run to run.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name not in _NOT_COMPARED:
            digest.update(name.encode())
            whole = column.combine_chunks()
            whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
            _feed(digest, clean(whole) if pa.types.is_string(whole.type) else whole)
    return digest.hexdigest()


def sorted_rows(table: pa.Table) -> pa.Table:
    """Return rows in an order that does not depend on the one in which they were read."""
    names = [
        field.name
        for field in table.schema
        if not pa.types.is_nested(field.type) and field.name not in _NOT_COMPARED
    ]
    if not names:
        return table
    return table.combine_chunks().sort_by([(name, "ascending") for name in names])


def _feed(digest: Any, column: pa.Array) -> None:
    kind = column.type
    digest.update(str(kind).encode())
    digest.update(column.is_valid().to_numpy(zero_copy_only=False).tobytes())
    column = column.drop_null()
    if pa.types.is_map(kind):
        item = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        column = column.cast(pa.list_(item))
        kind = column.type
    if pa.types.is_list(kind):
        digest.update(pc.list_value_length(column).to_numpy().tobytes())
        _feed(digest, column.flatten())
    elif pa.types.is_struct(kind):
        for part in column.flatten():
            _feed(digest, part)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        digest.update(pc.binary_length(column).to_numpy().tobytes())
        digest.update(b"".join(column.cast(pa.binary()).to_pylist()))
    elif pa.types.is_timestamp(kind):
        digest.update(column.cast(pa.int64()).to_numpy().tobytes())
    else:
        digest.update(column.to_numpy(zero_copy_only=False).tobytes())


class _Task:
    """What a task reads, sorted by kind and in order of each kind."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self.found: dict[str, list[str]] = {}
        self._clean = clean
        self._store = ""

    def add(self, value: Any) -> None:
        if isinstance(value, (str, int, float, bool, bytes, type(None), datetime)):
            if value not in (None, False, ""):
                self._note("values", self._clean(str(value)))
        elif isinstance(value, (np.ndarray, np.generic, pa.Array, pa.ChunkedArray)):
            self._note("numbers", _numbers(value))
        elif isinstance(value, Mapping):
            for name, entry in sorted(value.items(), key=repr):
                inner = _Task(self._clean)
                inner.add(entry)
                self._note("tables", f"{name}: {json.dumps(inner.found, sort_keys=True)}")
        elif (parts := _parts(value)) is not None:
            self._add_parts(parts)
        elif isinstance(value, (frozenset, set)):
            self.add(sorted(value, key=repr))
        else:
            for one in value:
                self.add(one)

    def _add_parts(self, parts: dict[str, Any]) -> None:
        if {"path", "broker_name"} <= parts.keys():  # a store, whose options are no part of a task
            self._store = self._clean(Path(parts["path"]).name)
            if self.found.get("stores", [""])[-1] != self._store:
                self.found.setdefault("stores", []).append(self._store)
            return
        if parts.keys() == {"physical_offset", "store_timestamp"}:
            mark = f"{self._store} {[*parts.values()]}"
            if mark not in self.found.get("marks", []):
                self.found.setdefault("marks", []).append(mark)
            return
        if {"start", "end"} <= parts.keys():
            span = f"{parts.pop('start')} to {parts.pop('end')}"
            if {"topic", "queue_id"} <= parts.keys():
                self._note("queues", f"{parts.pop('topic')}-{parts.pop('queue_id')} {span}")
            else:
                self._note("log", span)
        # what says of which store a task reads comes first
        for value in sorted(parts.values(), key=lambda one: "broker_name" not in dir(one)):
            self.add(value)

    def _note(self, kind: str, text: str) -> None:
        self.found.setdefault(kind, []).append(f"{self._store} {text}".strip())


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the fields of an object by name, None if it has no names for them."""
    if hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Iterable):
        return None
    return dict(vars(value))


def _numbers(values: Any) -> str:
    """Return how many numbers or texts there are, the first and the last number, and a hash."""
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        _feed(digest, pa.concat_arrays(getattr(values, "chunks", [values])))
        return f"{len(values)} {digest.hexdigest()}"
    array = np.ravel(values)
    is_whole = array.dtype.kind in "iu"
    if is_whole:
        array = array.astype(np.int64)
    digest.update(array.tobytes())
    shown = f" {array[0]}..{array[-1]}" if is_whole and array.size else ""
    return f"{array.size}{shown} {digest.hexdigest()}"


class Recorder:
    """Runs cases of one place, whose stores lie in a folder that no outcome names."""

    def __init__(self, place: Place, facts: Mapping[str, str]) -> None:
        self._place, self._facts = place, facts
        self._folder, self._beside = facts["folder"], facts["beside"]

    def run(self, case: Case) -> Outcome:
        """Return what a case gives: schema, rows, tasks, warnings and errors, as far as it got."""
        outcome: Outcome = {}
        with _logged() as lines:
            try:
                given = {name: filled(value, self._facts) for name, value in case.options}
                if case.way in (BATCH, FILTERS):
                    self._batch(outcome, self._options(given), case.filters)
                elif case.way in IN_PYTHON:
                    self._python(outcome, case, given)
                else:
                    self._stream(outcome, self._options(given), case.way)
            except Exception as err:  # noqa: BLE001 - whatever is raised is recorded
                outcome["error"] = self._error(err)
        if lines:
            counts = sorted(Counter(map(self._clean, lines)).items())
            outcome["warnings"] = [text for text, _ in counts]
            outcome["times warned"] = [count for _, count in counts]
        return outcome

    def _options(self, given: Options) -> Options:
        base = {name: filled(value, self._facts) for name, value in self._place.base.items()}
        left_out: set[str] = set()
        if "brokers" in given:  # which takes the place of paths
            left_out |= {"path", "paths"}
        if given.get("view", "messages") != "messages":
            left_out |= {"mode", "failOnDataLoss"}
        return {name: value for name, value in base.items() if name not in left_out} | given

    def _clean(self, text: str) -> str:
        text = text.replace(self._folder, "STORE").replace(self._beside, "BESIDE")
        return text.replace(f"host {socket.gethostname()}", "host HOST")

    def _clean_column(self, column: pa.Array) -> pa.Array:
        return pc.replace_substring(column, self._folder, "STORE")

    def _error(self, err: BaseException) -> Outcome:
        found: Outcome = {"class": type(err).__name__, "text": self._clean(str(err))}
        if not isinstance(err, RmqStoreError):
            found["isForeign"] = True
        return found

    def _batch(self, outcome: Outcome, options: Options, filters: Sequence[str]) -> None:
        source = RmqStoreDataSource(options)
        schema = source.schema()
        outcome["schema"] = _names_and_types(schema)
        with pushdown_worker(is_running=bool(filters)):
            reader: Any = source.reader(schema)
        if filters:
            pushed = [self._filter(name) for name in filters]
            left = reader.pushFilters(pushed)
            outcome["left"] = [filters[pushed.index(one)] for one in left]
        pickled = pickle.dumps(reader)
        outcome["tasks"], tables = self._tasks(pickled, reader.partitions())
        self._note_rows(outcome, tables)

    def _tasks(
        self, reader: bytes, partitions: Iterable[Any]
    ) -> tuple[list[Outcome], list[pa.Table]]:
        """Return what each task is and gives, and its rows."""
        tasks, tables = [], []
        remote = pickle.loads(reader)
        for partition in partitions:
            part = pickle.loads(pickle.dumps(partition))
            described = _Task(self._clean)
            described.add(part)
            task: Outcome = {**described.found}
            batches: list[pa.RecordBatch] = []
            try:
                batches.extend(remote.read(part))
            except Exception as err:  # noqa: BLE001 - whatever is raised is recorded
                task["error"] = self._error(err)
                batches = []  # where they end depends on how rows are divided into batches
            table = pa.Table.from_batches(batches) if batches else None
            if table is not None and table.num_rows:
                tables.append(table)
                task["rows"] = [table.num_rows, digest_of(table, self._clean_column)]
            tasks.append(task)
        return tasks, tables

    def _note_rows(self, outcome: Outcome, tables: list[pa.Table]) -> None:
        """Note all rows of a read together, and their order, which depends on its division."""
        whole = [table for table in tables if table.num_rows]
        outcome["rows"] = [0, ""]
        if not whole:
            return
        table = pa.concat_tables(whole)
        outcome["order"] = digest_of(table, self._clean_column)
        outcome["rows"] = [table.num_rows, digest_of(sorted_rows(table), self._clean_column)]

    def _stream(self, outcome: Outcome, options: Options, way: str) -> None:
        source = RmqStoreDataSource(options)
        schema = source.schema()
        outcome["schema"] = _names_and_types(schema)
        reader: Any = source.streamReader(schema)
        pickled = pickle.dumps(reader)  # before it has read, as Spark does
        file = Path(f"{self._beside}/offsets.json")
        tasks: list[Outcome] = []
        tables: list[pa.Table] = []
        try:
            if way == AVAILABLE_NOW:
                reader.prepareForTriggerAvailableNow()
            start = reader.initialOffset()
            outcome["offsets"] = offsets = [start]
            for trigger in (1, 2):
                if trigger == 2 and way == RESTART:
                    reader.stop()
                    reader = source.streamReader(schema)
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                end = json.loads(json.dumps(end))
                if trigger == 2 and end == start:
                    break
                offsets.append(end)
                outcome["reported"] = reader.reportLatestOffset()
                read, rows = self._tasks(pickled, reader.partitions(start, end))
                tasks += [{"trigger": trigger, **task} for task in read]
                tables += rows
                outcome["tasks"] = tasks
                reader.commit(end)
                start = end
            self._note_rows(outcome, tables)
            if file.exists():
                outcome["file"] = file.read_text(encoding="utf-8")
        finally:
            reader.stop()
            file.unlink(missing_ok=True)

    def _filter(self, name: str) -> Any:
        kind, column, template = PUSHED[name]
        value: Any = filled(template, self._facts)
        if kind == "IsNotNull":
            return source_api.IsNotNull((column,))
        if kind == "In":
            value = tuple(json.loads(value))
        elif column in ("queueId", "queueOffset", "commitLogOffset"):
            value = int(value)
        elif column == "storeTimestamp":
            value = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(value))
        elif column == "body":
            value = value.encode()
        return getattr(source_api, kind)((column,), value)

    def _python(self, outcome: Outcome, case: Case, given: Options) -> None:
        options = self._options(given)
        several = options.pop("paths", None)
        arguments = {_argument(name): _python_value(name, text) for name, text in options.items()}
        path = arguments.pop("path", None if several is None else json.loads(several))
        path = arguments.pop("brokers", path)
        if isinstance(path, str) and "*" in path:
            path = [path]
        of_open = {name: arguments.pop(name) for name in _OF_OPEN & arguments.keys()}
        with rmqstore.open(path, **of_open) as store:
            if case.way == CALL:
                assert case.call is not None
                method, template = CALLS[case.call]
                answer = getattr(store, method)(**json.loads(filled(template, self._facts)))
                outcome["answer"] = self._answer(answer)
                return
            calls: list[tuple[int, int]] = []
            if "progress" in arguments:
                arguments["progress"] = lambda done, total: calls.append((done, total))
            view = arguments.pop("view", "messages")
            if view != "messages":
                scan = store.view(view, **arguments)
            elif case.way == COUNT:
                outcome["count"] = store.count(**arguments)
                return
            else:
                scan = store.scan(**arguments)
            outcome["schema"] = [[one.name, str(one.type), one.nullable] for one in scan.schema]
            self._note_rows(outcome, [scan.read_all()])
            if calls:
                outcome["progress"] = calls[-1]

    def _answer(self, answer: Any) -> Any:
        messages = getattr(answer, "messages", None)
        if messages is not None:
            places = [message.commitLogOffset for message in messages]
            whole = self._answer(repr(messages))
            return [places, whole, answer.uncovered, answer.was_scanned]
        text = self._clean(answer if isinstance(answer, str) else repr(answer))
        if len(text) > _SHORT:
            text = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return text


def _argument(name: str) -> str:
    return _OPTIONS[name].argument if name in _OPTIONS else name


def _python_value(name: str, text: str) -> Any:
    """Return the value of an argument of Python for the text of an option."""
    if name in OF_PYTHON:
        return text if name == "where" else json.loads(text)
    argument = _argument(name)
    if argument in _IN_COMMAS:
        return text.split(",")
    if argument in ("brokers", "storage_options"):
        with suppress(json.JSONDecodeError):
            return json.loads(text)
        return text
    try:
        return _OPTIONS[name].parse(name, text) if name in _OPTIONS else text
    except OptionError:
        return text


def _names_and_types(schema: Any) -> list[list[Any]]:
    return [[one.name, one.dataType.simpleString(), one.nullable] for one in schema.fields]


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.levelname}: {record.getMessage()}")


@contextmanager
def _logged() -> Iterator[list[str]]:
    """Collect what is logged as a warning or worse."""
    lines: list[str] = []
    handler = _Lines(lines)
    logging.getLogger().addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(handler)
