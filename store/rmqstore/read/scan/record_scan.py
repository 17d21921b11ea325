"""Reads the records at given physical offsets, as look-ups find them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from rmqstore.errors import OffsetOutOfRangeError, Text
from rmqstore.format.columns.search import know_their_places
from rmqstore.format.columns.walk import total_sizes
from rmqstore.format.layout import FIXED_PART_V4, Positions
from rmqstore.read.scan.assembler import Assembler, plain_pipeline
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.spec import READS_ON, ReadSpec
from rmqstore.storage.log.commitlog import CommitLog

logger = logging.getLogger(__name__)


class PlaceScan:
    """Reads the records at physical offsets, and keeps those that are wanted."""

    def __init__(self, log: CommitLog, spec: ReadSpec, wanted: LogFilter) -> None:
        self._log, self._spec, self._pipeline = log, spec, plain_pipeline(spec, wanted)

    def batches(self, places: Positions) -> Iterator[pa.RecordBatch]:
        """Yield the records in the order of the log.

        Args:
            places: physical offsets, int64 (n,), ascending. One where no record stores that offset
                gives none: after a log was cut, the index may point at such an offset.

        Raises:
            CorruptRecordError: a record is damaged and the mode is FAILFAST.
            OffsetOutOfRangeError: a file was deleted meanwhile, and data loss is to fail.
        """
        for segment in self._log.segments:
            first, stop = np.searchsorted(places, (segment.start, segment.end))
            inside = places[first:stop]
            if not len(inside):
                continue
            try:
                assembler = Assembler(self._spec, self._log, segment, self._pipeline)
            except OffsetOutOfRangeError as err:
                if self._spec.fail_on_data_loss:
                    text = Text(f"{err}; ", READS_ON, " reads on without it")
                    raise OffsetOutOfRangeError(text) from err
                logger.warning("data loss: %s", err)
                continue
            starts = inside - segment.start
            head_size = FIXED_PART_V4.itemsize
            self._log.want(segment, starts, head_size)
            heads = self._log.read_in_place(segment, starts, np.full(len(starts), head_size))
            starts = starts[know_their_places(heads, starts, segment.start)]
            yield from assembler.batches(starts, total_sizes(heads, starts), None)
