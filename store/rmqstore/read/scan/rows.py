"""Units of queues and the faults of their records, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.format.layout import Mask, Positions
from rmqstore.format.record import Expected


class UnitRows(NamedTuple):
    """What queue units say of n records, row by row."""

    topics: list[str]  # the distinct ones
    topic_codes: NDArray[np.int32]  # in topics
    queue_ids: NDArray[np.int32]
    queue_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tags_codes: NDArray[np.int64]

    def take(self, rows: slice | Positions | Mask) -> UnitRows:
        """Return the chosen rows."""
        return UnitRows(
            self.topics,
            self.topic_codes[rows],
            self.queue_ids[rows],
            self.queue_offsets[rows],
            self.sizes[rows],
            self.tags_codes[rows],
        )

    def expected(self, row: int) -> Expected:
        """Return what is expected of one record."""
        topic = self.topics[int(self.topic_codes[row])]
        return Expected(topic, int(self.queue_ids[row]), int(self.queue_offsets[row]), int(self.sizes[row]))


class Fault(NamedTuple):
    """A damaged record: its row in the batch at hand, what is known of it, what is wrong."""

    row: int
    known: Mapping[str, object]
    reason: str


def expected_columns(expected: Expected) -> dict[str, object]:
    """Return what a queue unit says of a record, by column."""
    return {
        "topic": expected.topic,
        "queueId": expected.queue_id,
        "queueOffset": expected.queue_offset,
        "storeSize": expected.size,
    }


def lost_rows(schema: pa.Schema, faults: list[Fault]) -> pa.RecordBatch:
    """Return rows for damaged records alone: in each, what is known, the reason, and nulls."""
    rows = [{name: value for name, value in fault.known.items() if name in schema.names} for fault in faults]
    return pa.RecordBatch.from_pylist(rows, schema)


def merge_faults(batch: pa.RecordBatch, rows: Positions, faults: list[Fault]) -> pa.RecordBatch:
    """Put rows for damaged records in their places among the others."""
    lost = lost_rows(batch.schema, faults)
    order = np.argsort(np.concatenate((rows, [fault.row for fault in faults])), kind="stable")
    both = pa.Table.from_batches([batch, lost]).take(pa.array(order)).combine_chunks()
    return both.to_batches()[0] if both.num_rows else batch


class SingleUnits(NamedTuple):
    """Units picked out of several queues, in the order of the log, and their physical offsets."""

    units: UnitRows
    physical_offsets: Positions

    @classmethod
    def joined(cls, parts: Sequence[SingleUnits]) -> SingleUnits | None:
        """Return the units of all parts, each of one topic; None if there are none."""
        parts = [part for part in parts if len(part.physical_offsets)]
        if not parts:
            return None
        topics = sorted({part.units.topics[0] for part in parts})
        codes = [np.full(len(part.physical_offsets), topics.index(part.units.topics[0]), np.int32) for part in parts]
        columns = [np.concatenate(column) for column in zip(*(part.units[2:] for part in parts), strict=True)]
        places = np.concatenate([part.physical_offsets for part in parts])
        joined = cls(UnitRows(topics, np.concatenate(codes), *columns), places)
        return joined.take(np.argsort(places, kind="stable"))

    def take(self, rows: Positions | slice) -> SingleUnits:
        """Return the chosen rows."""
        return SingleUnits(self.units.take(rows), self.physical_offsets[rows])
