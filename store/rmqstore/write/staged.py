"""Staged records in files of tasks, and their offsets in log and queues.

The records stand in one file, one after the other and still without their offsets. Beside it is a
file of Arrow IPC streams, one for each batch of records, with a row for each record: the commit
does not read fields of records back. Neither file is flushed, because a job that a power cut ends
is not committed.

The offsets follow from the sizes of the records and the ends of log and queues. They are computed
twice, to write the log and to build queues and index, because a large job would fill the memory
with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import StoreStateError
from rmqstore.format.columns.buffers import booleans, lengths_of, mask_of, numbers, texts
from rmqstore.format.columns.dispatch_requests import (
    USUAL_RULES,
    DispatchRequests,
    DispatchRules,
    PlacedFields,
    UnplacedRequests,
    have_units,
)
from rmqstore.format.columns.encode import (
    Lmqs,
    RecordColumns,
    Records,
    TopicColumn,
    encode_records,
    require_room,
    row_batches,
    stamp,
)
from rmqstore.format.columns.lmq import (
    extend_properties,
    offset_strings,
    require_plain_parents,
)
from rmqstore.storage.files.disk import BLOCK, Disk, aligned_bytes, named_os_errors
from rmqstore.storage.files.lifetime import OpenedInTurns, Turns, in_turn
from rmqstore.storage.files.scratch import ScratchFile, ScratchWriter
from rmqstore.storage.files.storage import Closing
from rmqstore.storage.log.appender import Placement, place_records
from rmqstore.storage.queue.next_offsets import NextOffsets

_SIDE = pa.schema(
    [
        pa.field("size", pa.int32()),
        pa.field("topic", pa.dictionary(pa.int32(), pa.string())),
        pa.field("queueId", pa.int32()),
        pa.field("sysFlag", pa.int32()),
        pa.field("tagsCode", pa.int64()),  # of a delayed message: its delay in ms
        pa.field("isDelayed", pa.bool_()),
        pa.field("keyHashes", pa.list_(pa.field("item", pa.int32()))),
    ]
)
# only in batches with rows that name light message queues
_LMQS = pa.field("lmqs", pa.list_(pa.field("item", pa.string())))


class StagedTask(NamedTuple):
    """What one task staged."""

    path: str
    n_records: int
    n_bytes: int
    n_lmqs: int = 0  # light message queues that the records name, each once for each record


class StagedBatch(NamedTuple):
    """Consecutive records of a part."""

    position: int  # in the file of records
    requests: UnplacedRequests
    sys_flags: NDArray[np.int32]
    lmqs: Lmqs | None = None  # the records lack their offsets in these


class PartWriter(OpenedInTurns):
    """The two files of one attempt of a task.

    A context manager, which closes them, and removes them if the attempt fails.

    Args:
        disk: performs all changes.
        path: the file of records. Its folder must exist: only the driver makes it, so a task that
            still runs when its job is aborted cannot write any more.
        log_file_size: bytes of a CommitLog file.
        rules: those of the store's broker.

    Attributes:
        n_records: number of the records that were staged so far.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        log_file_size: int,
        rules: DispatchRules = USUAL_RULES,
    ) -> None:
        self.turns = Turns(f"the staged file {path}", "stage the rows of the task again")
        self._disk = disk
        self._path = path
        self._log_file_size = log_file_size
        self._rules = rules
        self._records = ScratchWriter(disk, path)
        self._side = ScratchWriter(disk, _side_of(path))
        self.n_records = 0
        self._n_lmqs = 0

    def _close(self, *, completes: bool) -> None:
        if not completes:
            self._remove()
            return
        try:
            with self._named_os_errors():
                self._disk.close()
        except StoreStateError:
            self._remove()
            raise

    def _remove(self) -> None:
        for path in (self._path, _side_of(self._path)):
            with suppress(OSError):  # the folder of the job is removed when it ends
                self._disk.delete(path)
        with suppress(OSError):
            self._disk.close()

    def _named_os_errors(self) -> AbstractContextManager[None]:
        return named_os_errors(self._path, "the task leaves nothing and can be repeated")

    @in_turn
    def write(self, columns: RecordColumns) -> None:
        """Encode and stage rows; the first call makes the files.

        Raises:
            IllegalMessageError: a record does not fit into a CommitLog file.
            StoreStateError: the disk is full, or the folder was removed because the job has ended.
        """
        sizes = columns.sizes()
        require_room(sizes, self._log_file_size, self.n_records + 1)
        for rows in row_batches(sizes):
            part = columns.take(rows)
            records = encode_records(part)
            requests = part.requests(records, self._rules)
            n = len(requests.sizes)
            ends = np.zeros(n + 1, np.int32)
            np.cumsum(np.bincount(requests.key_rows, minlength=n), out=ends[1:])
            is_delayed = requests.is_delayed
            if is_delayed is None:
                is_delayed = np.zeros(n, np.bool_)
            topics = texts(requests.topics)
            side = [
                numbers(requests.sizes),
                pa.DictionaryArray.from_arrays(numbers(requests.topic_codes), topics),
                numbers(requests.queue_ids),
                numbers(records.sys_flags),
                numbers(requests.tags_codes),
                booleans(is_delayed),
                pa.ListArray.from_arrays(numbers(ends), numbers(requests.key_hashes)),
            ]
            schema = _SIDE
            if part.lmqs is not None:
                schema = _SIDE.append(_LMQS)
                queues = part.lmqs.queues
                bounds = np.searchsorted(part.lmqs.rows, np.arange(n + 1))
                names = texts(queues.names).take(numbers(queues.codes))
                side.append(pa.ListArray.from_arrays(numbers(bounds.astype(np.int32)), names))
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, schema) as stream:
                stream.write_batch(pa.RecordBatch.from_arrays(side, schema=schema))
            with self._named_os_errors():
                self._records.append(records.data)
                self._side.append(np.frombuffer(sink.getvalue(), np.uint8))
        self.n_records += len(columns)
        if columns.lmqs is not None:
            self._n_lmqs += len(columns.lmqs.rows)

    @in_turn
    def part(self) -> StagedTask:
        """Return the staged task, and free the reserved rest of its file."""
        with self._named_os_errors():
            for file in (self._records, self._side):
                file.end()
        return StagedTask(str(self._path), self.n_records, self._records.size, self._n_lmqs)


def _side_of(path: Path) -> Path:
    return path.with_name(path.name + ".side")


def read_batches(part: StagedTask) -> Iterator[StagedBatch]:
    """Yield the batches of a part in order, over a mapping of its side file.

    Raises:
        OSError: the files do not hold what the task staged.
    """
    if not part.n_records:
        return
    path = Path(part.path)
    n_records = position = 0
    with ScratchFile(_side_of(path)) as file:
        mapped = pa.BufferReader(pa.py_buffer(file.map()))
    try:
        while n_records < part.n_records:
            (columns,) = pa.ipc.open_stream(mapped)
            topics = columns.column("topic")
            keys = columns.column("keyHashes")
            is_delayed = mask_of(columns.column("isDelayed"))
            sys_flags = _array(columns.column("sysFlag"))
            n_keys = np.diff(_array(keys.offsets))
            requests = UnplacedRequests(
                topics.dictionary.to_pylist(),
                _array(topics.indices),
                _array(columns.column("queueId")),
                _array(columns.column("size")),
                have_units(sys_flags),
                _array(columns.column("tagsCode")),
                is_delayed if is_delayed.any() else None,
                np.repeat(np.arange(len(columns), dtype=np.int32), n_keys),
                _array(keys.values),
            )
            lmqs = None
            if _LMQS.name in columns.schema.names:
                lists = columns.column(_LMQS.name)
                rows = np.repeat(np.arange(len(columns)), np.diff(_array(lists.offsets)))
                lmqs = Lmqs(rows, TopicColumn.of(lists.values))
            staged = StagedBatch(position, requests, sys_flags, lmqs)
            n_records += len(sys_flags)
            position += int(requests.sizes.sum(dtype=np.int64))
            yield staged
    except (OSError, ValueError) as err:
        raise OSError(f"{_side_of(path)} was changed or cut: {err}") from err
    if (n_records, position) != (part.n_records, part.n_bytes):
        raise OSError(
            f"{path} does not hold what its task staged: "
            f"{part.n_records} records, {part.n_bytes} bytes; the file was changed or cut"
        )


class StagedRecords(Closing):
    """Reads the records of one part after another.

    The file is removed once it is open: it is not needed again, and the store's own files take its
    place in the page cache.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._path = ""
        self._file: ScratchFile | None = None
        # the bytes of this batch and of the one before, which may still be on their way to the log
        self._windows = [np.empty(0, np.uint8)] * 2

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def read(self, part: StagedTask, batch: StagedBatch, physical_offset: int) -> Records:
        """Return the records of a batch, which may be changed, and are gone with the next but one.

        Args:
            part: the part, after the parts that were read before.
            batch: the batch.
            physical_offset: of its first record. In memory the records lie in blocks as they will
                in the file, so that they can be written to it without another copy.

        Raises:
            OSError: the file has no such bytes.
        """
        if self._file is None or part.path != self._path:
            self.close()
            self._path = part.path
            self._file = ScratchFile(Path(part.path))
            self._disk.delete(Path(part.path))
        starts = np.concatenate(([0], np.cumsum(batch.requests.sizes, dtype=np.int64)))
        window = self._windows.pop(0)
        first = physical_offset % BLOCK
        end = first + int(starts[-1])
        if len(window) < end:
            window = aligned_bytes(end * 5 // 4)
        self._windows.append(window)
        data = window[first:end]
        self._file.read_into(data, batch.position)
        return Records(data, starts, batch.sys_flags)


def _array(column: pa.Array) -> NDArray[Any]:
    return np.from_dlpack(column)


class PlacedBatch(NamedTuple):
    """Consecutive records of a part, and their offsets and store times."""

    part: StagedTask
    batch: StagedBatch
    topics: TopicColumn
    placement: Placement
    fields: PlacedFields
    lmq_offsets: pa.BinaryArray | None  # a property string for each record; None without any

    def records(self, staged: StagedRecords, batch_topics: Collection[str]) -> Records:
        """Return the records, as :meth:`StagedRecords.read` does, with their offsets.

        Raises:
            IllegalMessageError: a record is in a batch topic and names a light message queue, or
                its properties become too long.
            OSError: the file has no such bytes.
        """
        records = staged.read(self.part, self.batch, int(self.placement.physical_offsets[0]))
        if self.batch.lmqs is not None and self.lmq_offsets is not None:
            require_plain_parents(self.topics, self.batch.lmqs, batch_topics)
            records = extend_properties(records, self.lmq_offsets)
        stamp(records, self.fields)
        return records


class StagedAppend:
    """Parts that are appended one after the other, in the order of their partitions.

    Args:
        parts: what the tasks staged.
        offsets: the next offset of each queue.
        start: physical offset of the first record.
        file_size: bytes of a CommitLog file.

    Attributes:
        n_records: number of all records.
        n_bytes: their bytes.
    """

    def __init__(
        self, parts: Sequence[StagedTask], offsets: NextOffsets, start: int, file_size: int
    ) -> None:
        self._parts = parts
        self._offsets = offsets
        self.n_records = sum(part.n_records for part in parts)
        self.n_bytes = sum(part.n_bytes for part in parts)
        self._start = start
        self._file_size = file_size
        self._times: list[int] = []  # the store time of each batch, ms
        offsets.save()

    def place(self, now: Callable[[], int]) -> Iterator[PlacedBatch]:
        """Yield all batches with their offsets; this advances the queue offsets.

        Args:
            now: returns the store time of the next batch, ms.

        Raises:
            IllegalMessageError: a record does not fit into a CommitLog file.
            OSError: a file does not hold what its task staged.
        """
        for placed in self._placed(self._offsets, now):
            self._times.append(int(placed.fields.store_timestamps[0]))
            yield placed

    def requests(self) -> Callable[[], Iterator[DispatchRequests]]:
        """Return a function that yields the dispatch requests of all batches, once placed."""
        offsets = self._offsets.rewound()

        def again() -> Iterator[DispatchRequests]:
            times = iter(self._times)
            for placed in self._placed(offsets, lambda: next(times)):
                yield placed.batch.requests.placed(placed.fields)

        return again

    def _placed(self, offsets: NextOffsets, now: Callable[[], int]) -> Iterator[PlacedBatch]:
        end = self._start
        for part in self._parts:
            for batch in read_batches(part):
                requests = batch.requests
                lmq_offsets = None
                if batch.lmqs is not None:
                    rows, queues, _ = batch.lmqs
                    offsets_there = offsets.assign(queues, batch.lmqs.queue_ids)
                    lmq_offsets = offset_strings(len(requests.sizes), rows, offsets_there)
                    sizes = requests.sizes + lengths_of(lmq_offsets).astype(np.int32)
                    requests = requests._replace(sizes=sizes)
                require_room(requests.sizes, self._file_size)
                placement = place_records(requests.sizes.astype(np.int64), end, self._file_size)
                topics = TopicColumn(requests.topics, requests.topic_codes)
                queue_offsets = offsets.assign(topics, requests.queue_ids)
                times = np.broadcast_to(np.int64(now()), len(requests.sizes))
                fields = PlacedFields(queue_offsets, placement.physical_offsets, times)
                yield PlacedBatch(part, batch, topics, placement, fields, lmq_offsets)
                end = placement.end
