"""What Spark does with a Python data source, in this process and without a JVM.

Spark makes the source from its options, asks for the schema, pushes filters, plans partitions, and
pickles the reader and each partition for tasks in other processes; writers and streams go the same
way. :class:`Engine` takes the same steps in the same order, with the same pickling and the same
checks of what a source returns. The cases that need Spark's own behaviour are in `test_spark_*.py`.

Source: pyspark.sql.worker.{create_data_source,plan_data_source_read,data_source_pushdown_filters,
write_into_data_source,commit_data_source_write,python_streaming_sink_runner} and
pyspark.sql.streaming.python_streaming_source_runner of PySpark 4.3.
"""

from __future__ import annotations

import inspect
import json
import operator
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Row, datasource as source_api
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

SOURCES = {
    "rmqstore": "pyspark_rmqstore.source:RmqStoreDataSource",
    "kafkalog": "pyspark_kafkalog.source:KafkaLogDataSource",
}
MAX_ROWS_A_BATCH = 10_000  # spark.sql.execution.arrow.maxRecordsPerBatch
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_pickled, _unpickled = CloudPickleSerializer().dumps, CloudPickleSerializer().loads


def _source(name: str) -> type[DataSource]:
    source: type[DataSource] = resolve_name(SOURCES[name])
    return source


@contextmanager
def _worker() -> Iterator[None]:
    """Report an error as Spark does: its class and text within a PySparkException."""
    try:
        yield
    except PySparkException:
        raise
    except Exception as err:
        kind = type(err)
        raise PySparkException(f"{kind.__module__}.{kind.__qualname__}: {err}") from err


@contextmanager
def task(partition: int, attempt: int, properties: Mapping[str, str]) -> Iterator[None]:
    """Be in a task: what ``TaskContext.get()`` returns."""
    before = TaskContext.get()
    TaskContext._setTaskContext(None)  # of which a process has one
    context = TaskContext()
    context._partitionId, context._taskAttemptId = partition, attempt
    context._localProperties = dict(properties)
    try:
        with _worker():
            yield
    finally:
        TaskContext._setTaskContext(before)


_TYPES: dict[str, DataType] = {
    "string": StringType(), "binary": BinaryType(), "int": IntegerType(), "integer": IntegerType(),
    "long": LongType(), "bigint": LongType(), "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}  # fmt: skip


def ddl(text: str) -> StructType:
    """Return a schema from a list like ``a string, b bigint NOT NULL``; Spark parses in the JVM."""
    schema = StructType()
    for column in re.split(r",(?![^<]*>)", text):
        name, kind, *rest = column.split()
        schema.add(name, _TYPES[kind.lower()], nullable=not rest)
    return schema


@dataclass(frozen=True)
class Frame:
    """A batch read: a pickled source and its schema, planned when its rows are asked for."""

    source: bytes
    schema: StructType
    filters: tuple[Filter, ...] = ()
    selected: tuple[str, ...] | None = None
    is_pushing: bool = False  # spark.sql.python.filterPushdown.enabled

    @property
    def columns(self) -> list[str]:
        return list(self.selected or self.schema.fieldNames())

    def where(self, *filters: Filter) -> Frame:
        return replace(self, filters=(*self.filters, *filters))

    def pushing(self) -> Frame:
        """Offer the filters to the source, as with spark.sql.python.filterPushdown.enabled."""
        return replace(self, is_pushing=True)

    def select(self, *names: str) -> Frame:
        return replace(self, selected=names)

    @cached_property
    def plan(self) -> Plan:
        """The reader and its tasks, as they go to the executors."""
        with _worker():
            return _plan(self)

    def tasks(self) -> list[pa.Table]:
        return [self._filtered(table) for table in self.plan.read()]

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return pa.concat_tables(self.tasks())

    def collect(self) -> list[Row]:
        rows: list[Row] = ArrowTableToRowsConversion.convert(self.toArrow(), self._chosen)
        return rows

    def count(self) -> int:
        return int(self.toArrow().num_rows)

    def first(self) -> Row | None:
        return next(iter(self.collect()), None)

    @property
    def write(self) -> FrameWriter:
        return FrameWriter(self._chosen, self.tasks())

    @property
    def _chosen(self) -> StructType:
        return StructType([self.schema[name] for name in self.columns])

    def _filtered(self, table: pa.Table) -> pa.Table:
        left = self.plan.left
        if left:
            keep = [all(meets(one, row) for one in left) for row in table.to_pylist()]
            table = table.filter(pa.array(keep, pa.bool_()))
        return table.select(self.columns)


@dataclass(frozen=True)
class Plan:
    source: bytes
    schema: StructType
    reader: bytes
    partitions: list[bytes]
    left: tuple[Filter, ...]  # that Spark itself applies

    def read(self) -> list[pa.Table]:
        """Return the rows of each task; every task has a reader and a partition of its own."""
        return [self._read(number) for number in range(len(self.partitions))]

    def _read(self, number: int) -> pa.Table:
        schema = to_arrow_schema(self.schema, timezone="UTC")
        with task(number, number, {}):
            reader, partition = _unpickled(self.reader), _unpickled(self.partitions[number])
            assert isinstance(partition, InputPartition)
            rows = reader.read(partition)
            assert isinstance(rows, Iterator)
            batches = records_to_arrow_batches(
                rows, MAX_ROWS_A_BATCH, self.schema, _unpickled(self.source)
            )
            return pa.Table.from_batches(list(batches), schema)


def _plan(frame: Frame) -> Plan:
    source = _unpickled(frame.source)
    pushes = bool(frame.filters) and frame.is_pushing
    with pushdown_worker(is_running=pushes):
        reader = source.reader(frame.schema)
    assert isinstance(reader, source_api.DataSourceReader)
    left = frame.filters
    if pushes:
        returned = list(reader.pushFilters(list(frame.filters)))
        assert all(any(one is given for given in frame.filters) for one in returned)
        left = tuple(returned)
    else:
        own = type(reader).pushFilters
        assert own is source_api.DataSourceReader.pushFilters, "Spark refuses this reader"
    pickled = _pickled(reader)  # before the partitions, as Spark does
    partitions = reader.partitions()
    assert isinstance(partitions, list)
    assert all(isinstance(one, InputPartition) for one in partitions)
    tasks = [_pickled(one) for one in partitions or [InputPartition(None)]]
    return Plan(frame.source, frame.schema, pickled, tasks, left)


@contextmanager
def pushdown_worker(*, is_running: bool) -> Iterator[None]:
    """Be in the worker that pushes filters down, or in the one that does not."""
    before = sys.modules.pop(_PUSHDOWN_WORKER, None)
    if is_running:
        sys.modules[_PUSHDOWN_WORKER] = sys.modules[__name__]
    try:
        yield
    finally:
        sys.modules.pop(_PUSHDOWN_WORKER, None)
        if before is not None:
            sys.modules[_PUSHDOWN_WORKER] = before


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq, "GreaterThan": operator.gt, "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt, "LessThanOrEqual": operator.le, "In": lambda value, of: value in of,
    "StringStartsWith": str.startswith, "StringEndsWith": str.endswith,
    "StringContains": operator.contains,
}  # fmt: skip


def meets(condition: Filter, row: Mapping[str, Any]) -> bool:
    """Return whether a row meets a filter by the rules of SQL: of null nothing is known."""
    return _meets(condition, row) is True


def _meets(condition: Any, row: Mapping[str, Any]) -> bool | None:
    name = type(condition).__name__
    if name == "Not":
        negated = _meets(condition.child, row)
        return None if negated is None else not negated
    value = row[condition.attribute[0]]
    if name == "IsNull":
        return value is None
    if name == "IsNotNull":
        return value is not None
    if name == "EqualNullSafe":
        return bool(value == condition.value)
    return None if value is None else _COMPARISONS[name](value, condition.value)


@dataclass
class _Stated:
    """The format, schema and options of a read or write, stated step by step."""

    stated: CaseInsensitiveDict = field(default_factory=CaseInsensitiveDict)
    source: str = ""
    schema_: StructType | None = None

    def format(self, name: str) -> Any:
        self.source = name
        return self

    def option(self, name: str, value: object) -> Any:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        self.stated[name] = text
        return self

    def options(self, **options: object) -> Any:
        for name, value in options.items():
            self.option(name, value)
        return self

    def schema(self, schema: StructType | str) -> Any:
        self.schema_ = ddl(schema) if isinstance(schema, str) else schema
        return self

    def _with_path(self, path: str | Sequence[str] | None) -> CaseInsensitiveDict:
        paths = [] if path is None else [path] if isinstance(path, str) else list(path)
        if len(paths) == 1:
            self.stated["path"] = paths[0]
        elif paths:
            self.stated["paths"] = json.dumps(paths)
        return self.stated

    def _made(self, path: str | Sequence[str] | None) -> tuple[bytes, StructType]:
        with _worker():
            source = _source(self.source)(options=self._with_path(path))
            schema = source.schema() if self.schema_ is None else self.schema_
            assert isinstance(schema, StructType)
            return _pickled(source), schema


class FrameReader(_Stated):
    def load(self, path: str | Sequence[str] | None = None) -> Frame:
        return Frame(*self._made(path))

    def json(self, folder: str) -> LocalFrame:
        """Return the rows that a query wrote with the sink ``json``."""
        assert self.schema_ is not None
        schema = to_arrow_schema(self.schema_, timezone="UTC")
        rows = [row for file in sorted(Path(folder).glob("*.json"))
                for row in json.loads(file.read_text())]  # fmt: skip
        return LocalFrame([pa.Table.from_pylist(rows, schema)])


@dataclass(frozen=True)
class LocalFrame:
    """Rows at hand, the partitions of a frame to write."""

    parts: Sequence[pa.Table]

    @property
    def schema(self) -> StructType:
        return from_arrow_schema(self.parts[0].schema)

    @property
    def write(self) -> FrameWriter:
        return FrameWriter(self.schema, self.parts)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return pa.concat_tables(self.parts)

    def collect(self) -> list[Row]:
        rows: list[Row] = ArrowTableToRowsConversion.convert(self.toArrow(), self.schema)
        return rows


class FrameWriter(_Stated):
    def __init__(self, schema: StructType, parts: Sequence[pa.Table]) -> None:
        super().__init__()
        self._rows, self._parts, self._mode = schema, parts, "errorifexists"

    def mode(self, name: str) -> FrameWriter:
        self._mode = name
        return self

    def save(self, path: str | None = None) -> None:
        """Run the job: a task for each part, then the commit, or abort if a task failed."""
        with _worker():
            source = _source(self.source)(options=self._with_path(path))
            writer = source.writer(self._rows, self._mode == "overwrite")
            assert isinstance(writer, source_api.DataSourceWriter)
            pickled = _pickled(writer)
        messages: list[bytes | None] = []
        try:
            for number, part in enumerate(self._parts):
                messages.append(_written(pickled, self._rows, part, number, {}))
            self._end(pickled, messages, is_abort=False)
        except Exception:
            messages += [None] * (len(self._parts) - len(messages))
            self._end(pickled, messages, is_abort=True)
            raise

    @staticmethod
    def _end(pickled: bytes, messages: Sequence[bytes | None], *, is_abort: bool) -> None:
        with _worker():
            writer = _unpickled(pickled)
            known = [None if one is None else _unpickled(one) for one in messages]
            (writer.abort if is_abort else writer.commit)(known)


def _written(
    pickled: bytes, schema: StructType, part: pa.Table, number: int, properties: Mapping[str, str]
) -> bytes:
    """Run one task of a write, and return its pickled message to the driver."""
    rows = part.cast(to_arrow_schema(schema, timezone="UTC"))
    with task(number, next(_attempts), properties):
        writer = _unpickled(pickled)
        batches = iter(rows.to_batches(max_chunksize=MAX_ROWS_A_BATCH))
        is_arrow = isinstance(
            writer, source_api.DataSourceArrowWriter | source_api.DataSourceStreamArrowWriter
        )
        assert is_arrow, "this engine passes Arrow batches"
        message = writer.write(batches)
        assert isinstance(message, source_api.WriterCommitMessage)
        return _pickled(message)


_attempts = count()


class StreamReader(_Stated):
    def load(self, path: str | Sequence[str] | None = None) -> StreamFrame:
        return StreamFrame(*self._made(path))


@dataclass(frozen=True)
class StreamFrame:
    """A stream that no query has begun to read."""

    source: bytes
    schema: StructType

    @property
    def writeStream(self) -> StreamWriter:  # noqa: N802 - Spark's name
        return StreamWriter(self)


class StreamWriter(_Stated):
    """``frame.writeStream``: into a source's own sink, a folder of JSON, or a function."""

    def __init__(self, frame: StreamFrame) -> None:
        super().__init__()
        self._frame, self._function = frame, None
        self._is_available_now = False

    def foreachBatch(self, function: Any) -> StreamWriter:  # noqa: N802 - Spark's name
        self._function = function
        return self

    def outputMode(self, name: str) -> StreamWriter:  # noqa: N802 - Spark's name
        assert name == "append"
        return self

    def trigger(
        self,
        *,
        availableNow: bool = False,  # noqa: N803 - Spark's name
        processingTime: str = "",  # noqa: ARG002, N803 - the caller says when
    ) -> StreamWriter:
        self._is_available_now = availableNow
        return self

    def start(self, path: str | None = None) -> Query:
        """Return the query; it runs when it is waited for, or trigger by trigger."""
        options = self._with_path(path)
        checkpoint = Path(options["checkpointLocation"])  # which a sink is told, too
        function = self._function
        if function is not None:
            sink: Sink = lambda _, batch_id, tables: function(LocalFrame(tables), batch_id)  # noqa: E731
        elif self.source in SOURCES:
            sink = _SourceSink(_source(self.source), options, self._frame.schema)
        else:
            assert self.source == "json"
            sink = _json_folder(Path(options["path"]))
        return Query(self._frame, sink, checkpoint, is_available_now=self._is_available_now)


class Query:
    """A query in micro-batches: its write-ahead log of offsets, its batches and their commits.

    Source: MicroBatchExecution.scala, PythonMicroBatchStream.scala. A batch is planned from the
    offsets in ``offsets/N``; it is done once ``commits/N`` exists, and repeated otherwise.
    """

    def __init__(
        self, frame: StreamFrame, sink: Sink, checkpoint: Path, *, is_available_now: bool
    ) -> None:
        self.recentProgress: list[Progress] = []
        self._frame, self._sink = frame, sink
        self._is_available_now = is_available_now
        self._offsets, self._commits = checkpoint / "offsets", checkpoint / "commits"
        for folder in (self._offsets, self._commits):
            folder.mkdir(parents=True, exist_ok=True)
        metadata = checkpoint / "metadata"
        if not metadata.exists():
            _write_whole(metadata, json.dumps({"id": str(uuid.uuid4())}))
        self.id = json.loads(metadata.read_text())["id"]
        self._reader: Any = None

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        """Run until everything that was there at the start is read."""
        try:
            while self.trigger():
                pass
        finally:
            self.stop()

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Run until nothing more is there; the query goes on to be open."""
        while self.trigger():
            pass

    def stop(self) -> None:
        """Stop, as the planning process does: its reader closes what it has open."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def trigger(self) -> bool:
        """Run the next micro-batch; return whether there was one."""
        with _worker():
            reader = self._started()
            number = len(list(self._commits.iterdir()))
            planned = self._offsets / str(number)
            start = self._start(number)
            latest = None
            if not planned.exists():
                since = reader.initialOffset() if start is None else json.loads(start)
                limit = reader.getDefaultReadLimit()
                end = json.dumps(reader.latestOffset(since, limit))
                latest = reader.reportLatestOffset()
                if end == start:  # the first batch is planned even if it is empty
                    return False
                _write_whole(planned, end)
                if start is not None:
                    reader.commit(json.loads(start))
            end = planned.read_text()
            if start is None:
                start = json.dumps(reader.initialOffset())
            self._run(number, json.loads(start), json.loads(end), latest)
            (self._commits / str(number)).touch()
            return True

    def _started(self) -> Any:
        if self._reader is None:
            self._reader = _unpickled(self._frame.source).streamReader(self._frame.schema)
            assert isinstance(self._reader, source_api.DataSourceStreamReader)
            assert len(inspect.signature(self._reader.latestOffset).parameters) == 2
            if self._is_available_now:
                assert isinstance(self._reader, SupportsTriggerAvailableNow)
                self._reader.prepareForTriggerAvailableNow()
        return self._reader

    def _start(self, number: int) -> str | None:
        return (self._offsets / str(number - 1)).read_text() if number else None

    def _run(self, number: int, start: Any, end: Any, latest: Any) -> None:
        frame = self._frame
        # A stream's reader goes to tasks as the planning process made it: before it has read.
        fresh = _unpickled(frame.source).streamReader(frame.schema)
        tasks = [_pickled(one) for one in self._reader.partitions(start, end)]
        tables = Plan(frame.source, frame.schema, _pickled(fresh), tasks, ()).read()
        empty = to_arrow_schema(frame.schema, timezone="UTC").empty_table()
        self._sink(self.id, number, tables or [empty])
        n_rows = sum(table.num_rows for table in tables)
        self.recentProgress.append(Progress(n_rows, start, end, latest))


def _write_whole(path: Path, text: str) -> None:
    """Write a file of a checkpoint, of which no part shows if the process is killed."""
    written = path.with_name(f".{path.name}.tmp")
    written.write_text(text)
    written.rename(path)


@dataclass(frozen=True)
class Progress:
    numInputRows: int  # noqa: N815 - Spark's name
    start: Any
    end: Any
    latest: Any

    @property
    def json(self) -> str:
        source = {
            "startOffset": self.start, "endOffset": self.end, "latestOffset": self.latest,
            "numInputRows": self.numInputRows,
        }  # fmt: skip
        return json.dumps({"numInputRows": self.numInputRows, "sources": [source]})

    def __getitem__(self, name: str) -> Any:
        return json.loads(self.json)[name]


# What takes the rows of a query, given its id, the number of the batch and what its tasks gave.
Sink = Callable[[str, int, Sequence[pa.Table]], object]


def _json_folder(folder: Path) -> Sink:
    """Return a sink with a file for each batch; a repeated batch replaces its own."""

    def write(_query_id: str, batch_id: int, tables: Sequence[pa.Table]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        rows = [row for table in tables for row in table.to_pylist()]
        (folder / f"{batch_id:06}.json").write_text(json.dumps(rows))

    return write


class _SourceSink:
    def __init__(
        self, kind: type[DataSource], options: CaseInsensitiveDict, schema: StructType
    ) -> None:
        self._kind, self._options, self._schema = kind, options, schema

    def __call__(self, query_id: str, batch_id: int, tables: Sequence[pa.Table]) -> None:
        properties = {
            "sql.streaming.queryId": query_id, "streaming.sql.batchId": str(batch_id)
        }  # fmt: skip
        messages: list[bytes | None] = []
        try:
            pickled = _pickled(self._writer())
            for number, table in enumerate(tables):
                messages.append(_written(pickled, self._schema, table, number, properties))
            known = [_unpickled(one) for one in messages]
            self._writer().commit(known, batch_id)
        except Exception:
            known = [None if one is None else _unpickled(one) for one in messages]
            known += [None] * (len(tables) - len(known))
            self._writer().abort(known, batch_id)
            raise

    def _writer(self) -> Any:
        source = _unpickled(_pickled(self._kind(options=self._options)))
        return source.streamWriter(self._schema, False)


class Engine:
    """Stands in a test where a Spark session would."""

    @property
    def read(self) -> FrameReader:
        return FrameReader()

    @property
    def readStream(self) -> StreamReader:  # noqa: N802 - Spark's name
        return StreamReader()

    @staticmethod
    def frame(rows: pa.Table | Mapping[str, Iterable[Any]], partitions: int = 1) -> LocalFrame:
        """Return rows as a frame of so many partitions, which share them in their order."""
        table = rows if isinstance(rows, pa.Table) else pa.table(dict(rows))
        bounds = [table.num_rows * number // partitions for number in range(partitions + 1)]
        return LocalFrame([table.slice(start, end - start) for start, end in pairwise(bounds)])
