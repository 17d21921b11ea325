"""Makes checked RecordBatches: cuts batches, brings their bytes close, and takes the steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from rmqstore.format.columns.buffers import GATHER_SLACK
from rmqstore.format.columns.decode import DECODED_COLUMNS
from rmqstore.format.columns.walk import cut_batches
from rmqstore.format.layout import BATCH_BYTES, BATCH_ROWS, Bytes, Positions
from rmqstore.lazy import cached_property
from rmqstore.query.damage import PERMISSIVE
from rmqstore.read.faults import (
    Explain,
    Origin,
    explain,
    find_faults,
    merge_faults,
    report_flaws,
)
from rmqstore.read.read_ahead import Prefetch, Sizes, prefetch_nothing
from rmqstore.read.read_spec import ReadSpec
from rmqstore.read.record_filter import ALL_RECORDS, LogFilter
from rmqstore.read.repeated_units import RepeatedUnits
from rmqstore.read.rows import UnitRows
from rmqstore.read.stages import (
    LogBytes,
    Rows,
    check,
    choose,
    decode,
    inflate,
    keep_planned,
    verify_crc,
    verify_properties,
)
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog, SegmentPosition

_MAX_WINDOW = 2 * BATCH_BYTES

Step = Callable[[Rows], Rows]


@dataclass(frozen=True)
class Pipeline:
    """How the records of a read become batches."""

    spec: ReadSpec
    check: Callable[[LogBytes, Positions, UnitRows | None], Rows]
    steps: tuple[Step, ...]  # between the check and decoding, in their order
    explain: Explain
    # The bytes that each row adds to a batch; None if these are the sizes of the records.
    weigh: Callable[[Positions, Sizes, UnitRows | None], Sizes] | None = None

    def batches(
        self,
        source: LogBytes,
        starts: Positions,
        units: UnitRows | None,
        origin: Origin | None = None,
    ) -> Generator[pa.RecordBatch, None, int]:
        """Yield records as batches, and return how many of them were read.

        These are all records, unless there is no origin.

        Args:
            source: the bytes that hold the records.
            starts: int64 (n,), where the records begin in them.
            units: what queues say of the records, None in a read by log.
            origin: where the records are from, for reports of damage. Without it the read ends
                before the first batch with damage.

        Raises:
            CorruptRecordError: a record is damaged, the mode is FAILFAST, and there is an origin.
        """
        n_read = 0
        while n_read < len(starts):
            left = slice(n_read, None)
            rest = LogBytes(source.data, source.bases(left))
            rows = self.check(rest, starts[left], units.take(left) if units else None)
            for step in self.steps:
                if origin is None and not rows.valid.all():
                    break
                rows = step(rows)
            if origin is not None:
                faults = find_faults(rows, self.spec, origin, self.explain)
                batch = decode(rows, self.spec, self._decoded)
                batch = report_flaws(batch, rows, self.spec, origin.path)
                if faults:
                    batch = merge_faults(batch, rows.row_numbers, faults)
            elif rows.flaws or not rows.valid.all():
                break
            else:
                batch = decode(rows, self.spec, self._decoded)
            n_read += len(rows.valid)  # bodies that inflate hugely end a batch early
            del rows  # while the caller works on the batch
            if batch.num_rows:
                yield batch
        return n_read

    @cached_property
    def _decoded(self) -> pa.Schema:
        """Those columns of the read that are in records."""
        return pa.schema([field for field in self.spec.schema if field.name in DECODED_COLUMNS])


def plain_pipeline(
    spec: ReadSpec,
    chosen: LogFilter = ALL_RECORDS,
    repeated: RepeatedUnits | None = None,
    *,
    is_sparse: bool = False,
) -> Pipeline:
    """Return the steps for records of one message each, which is that of their queue.

    Args:
        spec: the spec of the read.
        chosen: keeps messages by topic, time, key and id.
        repeated: notes units that point at the record of another one.
        is_sparse: whether the units are those of compacted topics.
    """
    keeps_parts = spec.mode == PERMISSIVE
    chooses_by_properties = (
        spec.tags is not None or spec.filter is not None or bool(chosen.lookup_keys)
    )
    steps: list[Step] = [] if spec.last_record is None else [partial(keep_planned, spec=spec)]
    if spec.check_crc and spec.check_record_crc and chooses_by_properties:
        steps.append(verify_properties)
    steps.append(partial(choose, spec=spec, chosen=chosen))
    steps += [partial(verify_crc, spec=spec), partial(inflate, spec=spec)]
    own_check = partial(check, keeps_parts=keeps_parts, repeated=repeated, is_sparse=is_sparse)
    return Pipeline(spec, own_check, tuple(steps), explain)


class Assembler:
    """Makes RecordBatches from records of one file.

    Attributes:
        n_done: how many records of the last call of :meth:`batches` are done.
    """

    def __init__(
        self,
        log: CommitLog,
        segment: Segment,
        pipeline: Pipeline,
        prefetch: Prefetch = prefetch_nothing,
    ) -> None:
        """Take the file, which is opened when its records are read.

        Args:
            log: the log of the store.
            segment: the file.
            pipeline: how records become batches.
            prefetch: prefetches what follows the physical offset that is read.
        """
        self._log = log
        self._segment = segment
        self._pipeline = pipeline
        self._prefetch = prefetch
        self._buffer = np.empty(0, np.uint8)
        self.n_done = 0

    def batches(
        self,
        starts: Positions,
        sizes: Sizes,
        units: UnitRows | None,
        data: Bytes | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records at ``starts``, in that order, as batches.

        Args:
            starts: int64 (n,), positions in the file.
            sizes: int64 (n,), bytes of the records, as far as known; they bound a batch.
            units: what the queue says of each, None in a scan by the log.
            data: if given, an array as long as the file that holds the records.

        Raises:
            CorruptRecordError: a record is damaged and the mode is FAILFAST.
            FileDeletedError: the file is gone, or another one of a remote store has replaced it.
        """
        self.n_done = 0
        origin = Origin(str(self._segment.path), self._record_at)
        weights = sizes
        if self._pipeline.weigh is not None:
            weights = self._pipeline.weigh(starts, sizes, units)
        for rows in cut_batches(weights, BATCH_ROWS, BATCH_BYTES):
            rest = starts[rows]
            rest_units = units.take(rows) if units else None
            self._prefetch(self._segment.start + int(rest[0]))
            if data is None:
                source = self._bring_close(rest, sizes[rows])
            else:
                source = LogBytes(data, self._segment.start)
            rest = rest + self._segment.start - source.base
            yield from self._pipeline.batches(source, rest, rest_units, origin)
            self.n_done += len(starts[rows])
            self._pipeline.spec.advance(len(starts[rows]), int(sizes[rows].sum()))

    def _bring_close(self, starts: Positions, sizes: Sizes) -> LogBytes:
        """Return bytes that hold the records of a batch.

        Records that lie close together are copied into a buffer that stays in the cache: the
        columns are gathered from it several times, and a gather from the mapped file waits for
        memory each time. Records far apart, as those of a small topic, are read in their places.
        """
        low = int(starts.min())
        high = int((starts + np.maximum(sizes, 0)).max())
        file_size = self._log.file_of(self._segment).size
        is_inside = low >= 0 and high <= file_size
        if not is_inside or high - low > min(2 * int(sizes.sum()), _MAX_WINDOW):
            data = self._log.read_in_place(self._segment, starts, sizes)
            return LogBytes(data, self._segment.start)
        high = min(high + GATHER_SLACK, file_size)
        if len(self._buffer) < high - low:
            # Batch sizes vary a little, and fresh pages are expensive, so the buffer has room.
            self._buffer = np.empty((high - low) * 5 // 4, np.uint8)
        data = self._log.read_into(self._segment, self._buffer[: high - low], low)
        return LogBytes(data, self._segment.start + low)

    def _record_at(self, physical_offset: int) -> Bytes:
        position = SegmentPosition(self._segment, physical_offset - self._segment.start)
        return self._log.record(position)
