"""From places of records to a checked RecordBatch: verify, filter, decode, and do with damage what the mode says."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, MalformedBytesError, OffsetOutOfRangeError
from rmqstore.format.columns.buffers import mask_of, numbers, texts
from rmqstore.format.columns.checks import inflate_bodies, rows_with_crc, sound_crcs, sound_topics
from rmqstore.format.columns.decode import DECODED_COLUMNS, decode_columns, property_values, repeat_text, stored_bodies
from rmqstore.format.columns.heads import Heads, check_heads, read_heads
from rmqstore.format.columns.walk import cut_batches
from rmqstore.format.layout import BATCH_BYTES, BATCH_ROWS, MAX_EXT_ADDRESS, Mask, Positions, SysFlag
from rmqstore.format.record import Expected, check_record
from rmqstore.format.schema import ALL_COLUMNS, PENDING
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.rows import Fault, UnitRows, expected_columns, lost_rows, merge_faults
from rmqstore.read.scan.spec import DROPMALFORMED, FAILFAST, PERMISSIVE, ReadSpec
from rmqstore.spans import LostStretch
from rmqstore.storage.files.mapped_file_queue import Segment
from rmqstore.storage.log.commitlog import CommitLog

logger = logging.getLogger(__name__)

_MAX_WINDOW = 2 * BATCH_BYTES
_WINDOW_SLACK = 64  # so that gathers of a whole word need not care for the last record


@dataclass(slots=True)
class Kept:
    """The records of a batch that are still in it."""

    heads: Heads
    columns: dict[str, pa.Array]  # that came about on the way
    places: Positions | None = None  # where they stood in the batch; None for all of it

    def narrow(self, rows: Positions) -> None:
        """Keep only these rows."""
        self.heads = self.heads.take(rows)
        self.places = rows if self.places is None else self.places[rows]
        self.columns = {name: column.take(numbers(rows)) for name, column in self.columns.items()}

    def all_places(self) -> Positions:
        """Return the places, also where they are all of them."""
        return np.arange(len(self.heads)) if self.places is None else self.places


class Assembler:
    """Makes RecordBatches from records of one file."""

    def __init__(self, spec: ReadSpec, log: CommitLog, segment: Segment, wanted: LogFilter | None = None) -> None:
        self._spec, self._log, self._segment, self._wanted = spec, log, segment, wanted
        self._file = log.data(segment)
        self._data, self._base = self._file, segment.start
        self._window = np.empty(0, np.uint8)
        names = spec.schema.names
        self._decoded = pa.schema([field for field in spec.schema if field.name in DECODED_COLUMNS])
        self._inflates = spec.inflate and "body" in names

    def batches(self, starts: Positions, sizes: NDArray[np.int64], units: UnitRows | None) -> Iterator[pa.RecordBatch]:
        """Yield the records at ``starts``, in that order, as batches.

        Args:
            starts: int64 (n,), positions in the file.
            sizes: int64 (n,), bytes of the records, as far as known; they bound a batch.
            units: what the queue says of each, None in a scan by the log.

        Raises:
            CorruptRecordError: a record is damaged and the mode is FAILFAST.
        """
        for rows in cut_batches(self._weights(starts, sizes, units), BATCH_ROWS, BATCH_BYTES):
            at, said = starts[rows], units.take(rows) if units else None
            at = self._open_window(at, sizes[rows])
            while len(at):
                batch, done = self._make(at, said)
                if batch.num_rows:
                    yield batch
                at, said = at[done:], said.take(slice(done, None)) if said else None

    def _weights(self, _starts: Positions, sizes: NDArray[np.int64], _units: UnitRows | None) -> NDArray[np.int64]:
        """Return what bounds a batch: the bytes that each row adds to it, (n,)."""
        return sizes

    def _open_window(self, starts: Positions, sizes: NDArray[np.int64]) -> Positions:
        """Bring the bytes of a batch close; return where in them its records start.

        Records that lie close together are copied into a window that stays in the cache: the columns are gathered from
        it several times, and a gather from the mapped file waits for memory each time. Records far apart, as those
        of a small topic, are read where they are.
        """
        low, high = int(starts.min()), int((starts + np.maximum(sizes, 0)).max())
        self._data, self._base = self._file, self._segment.start
        if low < 0 or high > len(self._file) or high - low > 2 * int(sizes.sum()) or high - low > _MAX_WINDOW:
            return starts
        high = min(high + _WINDOW_SLACK, len(self._file))
        if len(self._window) < high - low:
            self._window = np.empty((high - low) * 5 // 4, np.uint8)  # batches differ a little; new memory is dear
        self._data = self._log.read_into(self._segment, self._window[: high - low], low)
        self._base = self._segment.start + low
        return starts - low

    def _make(self, starts: Positions, units: UnitRows | None) -> tuple[pa.RecordBatch, int]:
        """Make one batch; return it and how many of the records went into it (bodies that inflate hugely end it)."""
        kept, sound, reasons = self._take_sound(starts, units)
        chosen = self._choose(kept.heads)
        if chosen is not None:
            kept.narrow(chosen)
        if self._spec.check_crc:
            self._check_crcs(kept, sound)
        done = len(sound)
        if self._inflates and (kept.heads.column("sys_flag") & np.int32(SysFlag.COMPRESSED)).any():
            inflated, broken = self._inflate(kept)
            reasons |= broken
            done = done if inflated is None else inflated
        faults = self._faults(starts[:done], sound[:done], reasons, units)
        said = units if units is None or kept.places is None else units.take(kept.places)
        batch = pa.RecordBatch.from_arrays(self._columns(kept.heads, said, kept.columns), schema=self._spec.schema)
        if faults and self._spec.mode == PERMISSIVE:
            batch = merge_faults(batch, kept.all_places(), faults)
        return batch, done

    def _take_sound(self, starts: Positions, units: UnitRows | None) -> tuple[Kept, Mask, dict[int, str]]:
        """Read and check records.

        Returns:
            Those that are sound; which these are, bool (k,), less than all where the others are left for the next
            batch; and what is wrong with others, by row, as far as it is known already.
        """
        topic = units.topics[0].encode() if units is not None and len(units.topics) == 1 else None
        heads, whole = read_heads(self._data, starts, topic)
        sound, known = self._check(heads, whole, units)
        kept = Kept(heads, known)
        if not sound.all():
            kept.narrow(np.flatnonzero(sound))
        if self._spec.check_crc and self._chooses_by_properties:
            self._check_properties(kept, sound)
        return kept, sound, {}

    @property
    def _chooses_by_properties(self) -> bool:
        by_log = self._wanted is not None and (self._wanted.keys is not None or self._wanted.msg_ids is not None)
        return self._spec.tags is not None or self._spec.filter is not None or by_log

    def _check_properties(self, kept: Kept, sound: Mask) -> None:
        """Drop records with a CRC of their own that is wrong: who chooses by properties must be able to trust them."""
        rows = rows_with_crc(self._data, kept.heads)
        heads = kept.heads.take(rows)
        wrong = rows[~sound_crcs(self._data, heads, stored_bodies(self._data, heads))]
        if len(wrong):
            sound[kept.all_places()[wrong]] = False
            kept.narrow(np.setdiff1d(np.arange(len(kept.heads)), wrong))

    def _inflate(self, kept: Kept) -> tuple[int | None, dict[int, str]]:
        """Put bodies as they were before compression among the columns; drop records whose body is broken.

        Returns:
            The place of the first record that is left for the next batch, None if none is; and what is wrong with the
            broken bodies, by place.
        """
        flags = kept.heads.column("sys_flag")
        stored = kept.columns.get("body")
        bodies, inflated, broken = inflate_bodies(
            stored_bodies(self._data, kept.heads) if stored is None else stored, flags
        )
        places = kept.all_places()
        kept.columns["body"] = bodies
        rest = int(places[inflated]) if inflated < len(places) else None
        if rest is not None or broken:
            kept.narrow(np.setdiff1d(np.arange(inflated), list(broken)))
        return rest, {int(places[row]): reason for row, reason in broken.items()}

    def _check(self, heads: Heads, whole: Mask, units: UnitRows | None) -> tuple[Mask, dict[str, pa.Array]]:
        """Return which records are sound but for their CRC, and the columns that came about on the way."""
        known: dict[str, pa.Array] = {}
        sound = whole & check_heads(heads, self._base)
        if units is not None:
            sound &= heads.column("total_size") == units.sizes
            sound &= heads.column("queue_id") == units.queue_ids
            sound &= heads.column("queue_offset") == units.queue_offsets
            same, expected = sound_topics(self._data, heads, units.topics, units.topic_codes)
            sound &= same
            if expected is not None:
                known["topic"] = expected
        return sound, known

    def _check_crcs(self, kept: Kept, sound: Mask) -> None:
        """Drop records whose CRC is wrong, and unset them in ``sound``. Bodies that no one asks for are not read."""
        bodies = kept.columns["body"] = stored_bodies(self._data, kept.heads)
        same = sound_crcs(self._data, kept.heads, bodies)
        if not same.all():
            sound[kept.all_places()[~same]] = False
            kept.narrow(np.flatnonzero(same))

    def _choose(self, heads: Heads) -> Positions | None:
        """Return the rows that the filters keep, None for all."""
        spec = self._spec
        kept = self._wanted.keep(self._data, heads) if self._wanted else None
        if spec.tags is not None:
            tags = decode_columns(self._data, heads, pa.schema([ALL_COLUMNS.field("tags")]))[0]
            found = pc.is_in(tags, value_set=texts(sorted(spec.tags)), skip_nulls=True)
            matched = mask_of(found)
            kept = matched if kept is None else kept & matched
        if spec.filter is not None:
            columns = property_values(self._data, heads, spec.filter.names)
            matched = spec.filter.keep(columns, len(heads))
            kept = matched if kept is None else kept & matched
        return None if kept is None or kept.all() else np.flatnonzero(kept)

    def _faults(
        self, starts: Positions, sound: Mask, reasons: Mapping[int, str], units: UnitRows | None
    ) -> list[Fault]:
        rows = sorted({*np.flatnonzero(~sound).tolist(), *(row for row in reasons if row < len(sound))})
        if not rows:
            return []
        if self._spec.mode == DROPMALFORMED:
            first = int(starts[rows[0]]) + self._base
            logger.warning("%s: dropped %d damaged records, the first at %d", self._segment.path, len(rows), first)
            return []
        faults = []
        for row in rows:
            expected = units.expected(row) if units else None
            physical_offset = int(starts[row]) + self._base
            reason = reasons.get(row) or self._reason(physical_offset, expected)
            if self._spec.mode == FAILFAST:
                raise CorruptRecordError(str(self._segment.path), physical_offset, reason)
            known: dict[str, object] = {"commitLogOffset": physical_offset}
            if expected:
                known |= expected_columns(expected)
            faults.append(Fault(row, self._named(known, f"{self._segment.path}, {physical_offset}: {reason}"), reason))
        return faults

    def _named(self, known: Mapping[str, object], text: str) -> dict[str, object]:
        return {**known, "brokerName": self._spec.broker_name, self._spec.corrupt_column: text}

    def _reason(self, physical_offset: int, expected: Expected | None) -> str:
        """Ask the reference codec what is wrong."""
        try:
            check_record(
                self._file.data,
                physical_offset - self._segment.start,
                physical_offset,
                check_crc=self._spec.check_crc,
                expected=expected,
            )
        except MalformedBytesError as err:
            return err.reason
        return "the record changed while it was read"

    def _columns(self, heads: Heads, units: UnitRows | None, known: Mapping[str, pa.Array]) -> list[pa.Array]:
        n = len(heads.starts)
        decoded = dict(zip(self._decoded.names, decode_columns(self._data, heads, self._decoded, known), strict=True))
        if "brokerName" in self._spec.schema.names:
            decoded["brokerName"] = repeat_text(self._spec.broker_name, n)
        if "tagsCode" in self._spec.schema.names:
            assert units is not None, "tagsCode is of the queue; a scan by the log is refused it"
            decoded["tagsCode"] = pa.array(units.tags_codes, mask=units.tags_codes <= MAX_EXT_ADDRESS)
        decoded |= {field.name: pa.nulls(n, field.type) for field in PENDING if field.name in self._spec.schema.names}
        if self._spec.corrupt_column in self._spec.schema.names:
            decoded[self._spec.corrupt_column] = _lost_codes(decoded.get("tagsCode"), n)
        return [decoded[name] for name in self._spec.schema.names]


def _lost_codes(tags_codes: pa.Array | None, n: int) -> pa.Array:
    """Return reasons, string (n,): of whole records only a tags code can be lost, see ``ext_codes``."""
    if tags_codes is None or not tags_codes.null_count:
        return pa.nulls(n, pa.string())
    reason = pa.scalar("tagsCode: the queue's unit leads to no unit of consumequeue_ext")
    return pc.if_else(tags_codes.is_null(), reason, pa.scalar(None, pa.string()))


def refuse_stretches(stretches: Iterable[LostStretch], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """Do with parts of the log that hold no readable record what the read says.

    Raises:
        CorruptRecordError: bytes are damaged and the mode is FAILFAST.
        OffsetOutOfRangeError: a file is missing, and data loss is to fail.
    """
    for stretch in stretches:
        if stretch.is_missing:
            _lose(stretch, spec)
        else:
            yield from _refuse(stretch, spec)


def _lose(stretch: LostStretch, spec: ReadSpec) -> None:
    text = f"{stretch.path}: the log from {stretch.start} to {stretch.end} is gone: {stretch.reason}"
    if spec.fail_on_data_loss:
        raise OffsetOutOfRangeError(f"{text}; set failOnDataLoss to false to go on without it")
    logger.warning("data loss: %s", text)


def _refuse(stretch: LostStretch, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    text = f"{stretch.reason}; {stretch.end - stretch.start} bytes up to the next record"
    if spec.mode == FAILFAST:
        raise CorruptRecordError(stretch.path, stretch.start, text)
    if spec.mode == DROPMALFORMED:
        logger.warning("%s: dropped a damaged stretch at %d: %s", stretch.path, stretch.start, text)
        return
    known = {
        "commitLogOffset": stretch.start,
        "brokerName": spec.broker_name,
        spec.corrupt_column: f"{stretch.path}, {stretch.start}: {text}",
    }
    yield lost_rows(spec.schema, [Fault(0, known, text)])
