"""Finds the units of records, and explains those that lead elsewhere or have another tags code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptRecordError, Finding, OffsetOutOfRangeError, number_of
from rmqstore.format.layout import MAX_EXT_ADDRESS
from rmqstore.format.text import decode_text
from rmqstore.inspect.broker_start import BrokerStart
from rmqstore.spans import FOREVER, Span
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.queue.consumequeue import ConsumeQueueExt
from rmqstore.storage.queue.placing import MAX_QUEUE_OFFSET, place_records
from rmqstore.storage.queue.queue import Queue, first_existing, places_of, records_end
from rmqstore.storage.queue.queue_set import (
    begins_file,
    built_end,
    ends_file,
    found_again,
    kept_end,
    recovered_begin,
)
from rmqstore.store.message_store import MessageStore

MAX_LED_ASTRAY: Final = 1000  # units of a queue whose records are looked at
_MAX_MESSAGES: Final = 1000  # of batch topics that are named
_MAX_RANGES: Final = 5  # of queue offsets that one finding names


def damaged_messages(store: MessageStore, topics: Iterable[str]) -> Iterator[Finding]:
    """Yield the messages of batch topics that reads refuse.

    Units and records may disagree although all of them are valid.
    """
    batches = store.scan(
        subscribe=topics, columns=["queueOffset"], mode="PERMISSIVE", fail_on_data_loss=False
    )
    corrupt = (
        text
        for batch in batches
        for text in batch.column("_corrupt_record").drop_null().to_pylist()
    )
    for text in islice(corrupt, _MAX_MESSAGES):
        location, _, reason = text.partition(": ")
        yield Finding("queue", location, reason)


def n_records(physical_offsets: NDArray[np.int64]) -> int:
    """Return how many records the messages of a queue have: those of an inner batch share one."""
    return len(physical_offsets[:1]) + int(np.count_nonzero(np.diff(physical_offsets)))


class TagsCodes:
    """Finds units of one queue that lead to their record and have another tags code.

    A unit holds the code, or an address in the extension of the queue, which has it then.

    Args:
        open_ext: opens the extension.
        tolerance: by how much a code may differ from that of the record.
    """

    def __init__(self, open_ext: Callable[[], ConsumeQueueExt], tolerance: int) -> None:
        self._ext = cache(open_ext)
        self._tolerance = tolerance
        self._others: list[NDArray[np.int64]] = []  # queue offsets of units with another code
        self._without_ext: list[NDArray[np.int64]] = []  # and with an address of no unit

    def compare(
        self, unit_offsets: NDArray[np.int64], codes: NDArray[np.int64], expected: NDArray[np.int64]
    ) -> None:
        """Note which units (n,) have another code than their records."""
        has_code = (codes >= expected - self._tolerance) & (codes <= expected + self._tolerance)
        in_ext = np.flatnonzero(codes <= MAX_EXT_ADDRESS)
        if len(in_ext):
            ext_units = self._ext().units(codes[in_ext])
            has_code[in_ext] = ~ext_units.valid | (ext_units.tags_codes == expected[in_ext])
            self._without_ext.append(unit_offsets[in_ext[~ext_units.valid]])
        self._others.append(unit_offsets[~has_code])

    def findings(self, queue_name: str) -> Iterator[Finding]:
        """Yield what was noted."""
        for offsets, what in (
            (self._others, "have another tags code than their record"),
            (self._without_ext, "lead to no unit of the extension, which has their tags code"),
        ):
            found = np.concatenate([np.empty(0, np.int64), *offsets])
            if len(found):
                text = f"the units of {named_offsets(found)} {what}"
                yield Finding("queue", queue_name, text, "tags")


class UnitPlaces:
    """Where the units of a queue's records stand, chunk by chunk in the order of the log.

    Args:
        queue: the queue.
        end: the queue offset after its last unit.
        has_keys: whether units stand at the queue offsets that their records name, as in RocksDB.
    """

    def __init__(self, queue: Queue, end: int, *, has_keys: bool) -> None:
        self._queue = queue
        self._span = queue.begin, end
        self._keeps_offsets = queue.is_batch or has_keys
        # The end of the queue as the log alone shows it, None before its first record, and by how
        # much its units stand after that.
        self._built_end: int | None = None
        self._shift = 0
        self._n_passed = 0  # records in no queue, and the physical offset of the first
        self._first_passed = -1
        self._n_only_here = 0  # records whose units a rebuild would leave out
        self._impossible: list[int] = []  # queue offsets that no message can have

    def find(self, named: NDArray[np.int64], expected: NDArray[np.void]) -> NDArray[np.int64]:
        """Return the queue offsets at which the units of records stand or are missing, (n,).

        -1 for a record that has no unit and gets none when the queue is built from the log.

        Args:
            named: the queue offsets in the records, (n,).
            expected: the units that they should have, (n,).
        """
        if self._keeps_offsets:
            return named
        physical_offsets = expected["physical_offset"].astype(np.int64)
        built = np.empty(len(named), np.int64)
        is_built = np.ones(len(named), np.bool_)
        for run in place_records(named, self._built_end):
            built[run.passed] = run.place
            is_built[run.passed] = False
            built[run.taken] = run.place + np.arange(run.taken.stop - run.taken.start)
            if run.taken.start < run.taken.stop:
                self._built_end = run.place + run.taken.stop - run.taken.start
        likely = built + self._shift
        sizes = expected["size"].astype(np.int64)
        places = places_of(self._queue, likely, physical_offsets, sizes, self._span)
        has_unit = places >= 0
        impossible = has_unit & ((named < 0) | (named >= MAX_QUEUE_OFFSET))
        self._impossible += named[impossible].tolist()
        if is_built.all() and (places == likely).all():
            return places
        self._n_only_here += int(np.count_nonzero(has_unit & ~is_built))
        is_passed = ~has_unit & ~is_built
        if is_passed.any() and not self._n_passed:
            self._first_passed = int(physical_offsets[np.argmax(is_passed)])
        self._n_passed += int(np.count_nonzero(is_passed))
        # Units that are missing would follow on those before.
        shifts = np.concatenate([[self._shift], places - built])
        last = np.maximum.accumulate(np.where(has_unit, np.arange(1, len(places) + 1), 0))
        self._shift = int(shifts[last[-1]])
        return np.where(has_unit | is_passed, places, built + shifts[last])

    def findings(self, queue_name: str) -> Iterator[Finding]:
        """Yield what follows from records that name other queue offsets than theirs."""
        if self._n_passed:
            count = number_of(self._n_passed, "record is", "records are")
            text = (
                f"{count} in no queue, the first at physical offset {self._first_passed}: when a "
                "broker came to them, the queue had units for the queue offsets that they name"
            )
            yield Finding("queue", queue_name, text, "named")
        if self._n_only_here:
            count = number_of(self._n_only_here, "message", "messages")
            text = f"built from the log, the queue would not have {count} that a broker serves now"
            yield Finding("queue", queue_name, text, "fewer")
        if self._impossible:
            count = number_of(len(self._impossible), "record names", "records name")
            text = f"{count} a queue offset that no message can have, as {self._impossible[0]}"
            yield Finding("queue", queue_name, text, "named")


class BuiltUnits:
    """Where a starting broker builds units of a queue's records, in the order of the log.

    It builds none of a record before the last one that has a unit, nor of one that names a queue
    offset before the end of the queue. A unit of a batch queue holds its queue offset.

    Args:
        queue: the queue.
        start: what the broker does; None if that is not foretold, and so nothing is built.
        read_end: the queue offset after the last unit that a recovery takes from the log.

    Attributes:
        kept: queue offset after the last unit that it keeps.
        end: queue offset after the last unit that is kept or built.

    Source: ConsumeQueue.java#putMessagePositionInfo, #truncateDirtyLogicFiles.
    """

    def __init__(self, queue: Queue, start: BrokerStart | None, read_end: int) -> None:
        self._queue, self._start = queue, start
        self._span = Span(FOREVER, FOREVER)
        self.kept = queue.end()
        if start is not None:
            log_end, built_from = start.log_end.physical_offset, start.built_from
            until = log_end if start.cuts_queues else FOREVER
            is_cut = start.cuts_queues and not start.builds_first
            self.kept = kept_end(queue, until, is_cut=is_cut)
            if self.kept > recovered_begin(queue):  # else it has met no unit
                built_from = max(built_from, records_end(queue, self.kept))
            if start.builds_first:  # it cuts later what leads behind the log, and builds until then
                built_from = max(built_from, built_end(queue))
            self._span = Span(built_from, log_end)
            if start.cuts_built:
                cut = kept_end(queue, until, is_cut=True)
                # A last file of a batch queue with zeros alone has a unit when it is cut.
                is_filled = queue.is_batch and not cut and read_end > self.kept
                if cut < self.kept and not is_filled:  # it ends the queue before what it builds
                    self.kept, self._span = cut, Span(FOREVER, FOREVER)
        self.end = self.kept
        self._is_new = not self.kept and not begins_file(queue, 0)  # no file is left
        self._built_end = 0  # after the last unit that is built
        self._passed_at = -1  # the end of the queue at the last record that is not built again

    def find(
        self, named: NDArray[np.int64], physical_offsets: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the queue offsets of the units that are built of records, (n,); -1 for none.

        Args:
            named: the queue offsets in the records, (n,).
            physical_offsets: those of the records, (n,).
        """
        built = np.full(len(named), -1, np.int64)
        is_read = (physical_offsets >= self._span.start) & (physical_offsets < self._span.end)
        rows = np.flatnonzero(is_read)
        if self._queue.is_batch:
            rows = rows[named[rows] >= self.kept]
            built[rows] = named[rows]
            self.end = max(self.end, int(built.max(initial=-1)) + 1)
            return built
        for run in place_records(named[rows], None if self._is_new else self.end):
            taken = rows[run.taken]
            if len(rows[run.passed]):
                self._passed_at = self.end
            if len(taken):
                self._is_new, self.end = False, run.place + len(taken)
                self._built_end = self.end
                built[taken] = np.arange(run.place, self.end)
        return built

    def misplace(self, named: int, physical_offset: int, size: int, offset_in_log: int) -> None:
        """Note a record with another physical offset than its own.

        Of those before that offset none is built after it. After a crash the broker cuts the queue
        last, and with it a unit that leads behind the log.

        Args:
            named: the queue offset in the record.
            physical_offset, size: what its unit gets.
            offset_in_log: where it lies.
        """
        start, end = self._span
        if offset_in_log < end and physical_offset + size > start <= offset_in_log:
            is_cut = self._start is not None and self._start.cuts_built and physical_offset >= end
            if not is_cut:
                self.find(np.array([named]), np.array([offset_in_log]))
            self._span = Span(physical_offset + size, end)

    def found_again(self) -> range:
        """Return the queue offsets of old units that follow on those built, and so count again.

        So do the zeros of a file that the broker begins after a full one for a record that it then
        passes over.
        """
        start, end = self._start, self.end
        if start is not None and start.cuts_queues:
            if self._has_begun:
                return range(end, end + 1)
            if start.builds_first:
                log_end = start.log_end.physical_offset
                return found_again(self._queue, self.kept, end, log_end)
        return range(end, end)

    @property
    def _has_begun(self) -> bool:
        """Whether the broker leaves a file without a unit behind the last one."""
        return self.end == self._passed_at > 0 and ends_file(self._queue, self.end)

    def of_zeros(self, queue_name: str, following: int, log_begin: int) -> Iterator[Finding]:
        """Yield what the broker makes of a last file without a unit.

        Args:
            queue_name: topic and queue id.
            following: the queue offset that it gives out next.
            log_begin: physical offset where the log begins.

        Source: ConsumeQueue.java#correctMinOffset, which looks for the last unit in that file.
        """
        queue, start = self._queue, self._start
        if start is None or queue.is_batch:
            return
        finding = partial(Finding, "queue", stops_broker=True)
        # A file that begins with zeros may be kept up to these, and hide the units before it.
        is_kept = log_begin > 0 and begins_file(queue, following - 1)
        is_kept = is_kept and not queue.unit(following - 1)[1]
        if following > max(0 if is_kept else queue.end(), self._built_end):
            text = f"a broker takes the zeros at queue offset {following - 1} for "
            text += (
                "an expired message, and serves no other" if log_begin else "one, and serves them"
            )
            stop = following - 1 if log_begin else 0
            hidden = range(first_existing(queue, stop, log_begin), stop)
            finding = partial(
                Finding, "queue", next_offset=following, unserved=(hidden,) if hidden else ()
            )
            text = f"the last file holds no unit: {text}"
        elif not start.cuts_queues and self.kept >= following > 0 and begins_file(queue, following):
            text = "the last file holds no unit: a broker of RocketMQ 5.3 does not start"
        elif not start.cuts_queues and self._has_begun:
            text = "the last file is full, and a record follows that has its unit: a broker of "
            text += "RocketMQ 5.3 does not start"
        else:
            return
        # The name of the only file shows that there were messages.
        yield finding(queue_name, text, "emptied" if queue.begin == queue.end() > 0 else "zeros")


def led_astray(
    queue: Queue, key: tuple[str, int], queue_offsets: Iterable[int], log: CommitLog
) -> Iterator[tuple[int, str]]:
    """Yield how many units lead to the record of another unit, and what is to be said of them.

    Units that lead to no record, or to one that no other unit leads to, are left out.

    Args:
        queue: the queue.
        key: its topic and queue id.
        queue_offsets: those of units that differ from the record that they should lead to, rising.
        log: the log.
    """
    found: dict[str, list[int]] = {}
    for queue_offset in queue_offsets:
        kind = _kind_of(queue, key, queue_offset, log)
        if kind is not None:
            found.setdefault(kind, []).append(queue_offset)
    for kind, of_kind in found.items():
        units = number_of(len(of_kind), "unit")
        yield len(of_kind), f"{units}, the first at queue offset {of_kind[0]}, for {kind}"


def _kind_of(queue: Queue, key: tuple[str, int], queue_offset: int, log: CommitLog) -> str | None:
    """Return how a unit leads to another record, and what a broker makes of such units."""
    physical_offset, size, _ = queue.unit(queue_offset)
    try:
        record = log.parts(physical_offset)
    except (CorruptRecordError, OffsetOutOfRangeError):
        return None
    fixed = record.fixed
    if int(fixed["physical_offset"]) != physical_offset or int(fixed["total_size"]) != size:
        return None
    topic = decode_text(record.topic)
    queue_id = int(fixed["queue_id"])
    if (topic, queue_id) != key:
        return (
            f"messages of {topic}-{queue_id}, as where a file of that queue was copied or restored "
            "to this one: a broker serves them here, and not the messages of this queue"
        )
    own_offset = int(fixed["queue_offset"])
    if own_offset == queue_offset or queue.unit(own_offset)[0] != physical_offset:
        return None
    path, position = queue.location(queue_offset)
    own_path, own_position = queue.location(own_offset)
    if path != own_path and position == own_position:
        return (
            f"messages of another file of the queue, {own_path}, as where that file was copied or "
            "restored to another name: a broker serves these messages twice, and not those that "
            "belong here"
        )
    return (
        "messages that have another unit, as a crash of a broker leaves them: a broker serves "
        "these messages twice"
    )


def ranges_of(queue_offsets: NDArray[np.int64]) -> tuple[range, ...]:
    """Return rising queue offsets as ranges."""
    runs = np.split(queue_offsets, np.flatnonzero(np.diff(queue_offsets) != 1) + 1)
    return tuple(range(int(run[0]), int(run[-1]) + 1) for run in runs if len(run))


def named_offsets(queue_offsets: NDArray[np.int64]) -> str:
    """Return rising queue offsets in words."""
    runs = ranges_of(queue_offsets)
    texts = [
        f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:_MAX_RANGES]
    ]
    n_more = len(runs) - _MAX_RANGES
    text = ", ".join(texts) + (f" and {n_more} more ranges" if n_more > 0 else "")
    return f"queue offset{'s' if len(queue_offsets) > 1 else ''} {text}"
