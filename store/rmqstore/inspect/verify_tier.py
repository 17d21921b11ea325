"""Compares tiered storage with the notes of its broker, and foresees what a broker does with it.

All of it was tried with RocketMQ 5.3.3; what it did with broken segments lies in
``tests/golden/broken.json``.

Source: FlatAppendFile.java#recover, #recoverFileSize, #readAsync; PosixFileSegment.java#createFile;
MessageStoreDispatcherImpl.java#doScheduleDispatch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import CorruptConfigError, Finding, NotPermittedError
from rmqstore.format.layout import QUEUE_UNIT, Mask
from rmqstore.inspect.verify_units import named_offsets, ranges_of
from rmqstore.read.store_parts import StoreParts
from rmqstore.spans import FOREVER, QueueKey
from rmqstore.storage.broker.config_files import integer, load_table, part_of
from rmqstore.storage.files.paths import is_queue_id
from rmqstore.storage.queue.tiered import (
    COMMIT_LOG,
    CONSUME_QUEUE,
    INDEX,
    INDEX_TOPIC,
    METADATA,
    Tier,
    segment_name,
    segment_start,
)
from rmqstore.store.message_store import MessageStore

logger = logging.getLogger(__name__)

_TABLES: Final = {
    COMMIT_LOG: "commitLogFileSegmentTable",
    CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    INDEX: "indexFileSegmentTable",
}
_INDEX_KEY: Final = (INDEX_TOPIC, 0)
_Lengths = dict[int, int]  # of segments, by the offset at which each begins


class _Segments(NamedTuple):
    """The segments of one kind of a queue."""

    folder: Path
    there: _Lengths
    noted: _Lengths | None  # as the broker noted them; None if it is not known
    others: list[str]  # names of files that are no segments

    @property
    def known(self) -> _Lengths:
        """The segments in the broker's notes; without notes, the existing ones."""
        return self.there if self.noted is None else self.noted

    @property
    def end(self) -> int | None:
        """The offset after the last one of those that the broker noted, as it takes it."""
        if not self.noted:
            return None
        return max(self.noted) + self.there.get(max(self.noted), 0)

    def are_read(self, positions: NDArray[np.int64]) -> Mask:
        """Return a mask (n,) of the positions in segments that a broker knows, and so reads."""
        mask: Mask = np.zeros(len(positions), np.bool_)
        for start in self.known:
            mask |= (positions >= start) & (positions < start + self.there.get(start, 0))
        return mask


def tier_findings(
    store: MessageStore, tier: Tier, next_offsets: Mapping[str, int] | None
) -> Iterator[Finding]:
    """Yield what is wrong with the segments of a broker in tiered storage.

    Segments of the index are not read; only their names and lengths are looked at.

    Args:
        store: the store, opened with its tiered storage, or that alone.
        tier: the files in tiered storage.
        next_offsets: the queue offset that a broker which starts gives out next, by name of a
            queue, where it gives some out again; None if that is not foretold.
    """
    noted = _noted(store, tier)
    is_closed = not store.paths.has_abort
    keys = {(topic, number) for topic in tier.topics() for number in tier.queue_ids(topic)}
    keys |= {key for _, key in noted or () if key != _INDEX_KEY}
    with MessageStore(StoreParts.of(None, tier)) as alone:
        for key in sorted(keys):
            kinds = (COMMIT_LOG, CONSUME_QUEUE)
            parts = {kind: _segments(tier, key, kind, noted) for kind in kinds}
            following = FOREVER if next_offsets is None else next_offsets.get(f"{key[0]}-{key[1]}")
            of_messages = list(_of_messages(store, alone, key, parts, following))
            is_needed = any(one.kind in ("unnoted", "deletes") for one in of_messages)
            for part in parts.values():
                yield from _of_files(part, is_closed=is_closed, is_needed=is_needed)
            yield from of_messages
    index = _segments(tier, _INDEX_KEY, INDEX, noted)
    if index.there:
        logger.warning("%s: the content of the segments of the index is not checked", index.folder)
    for finding in _of_files(index, is_closed=is_closed):
        yield finding if finding.kind else finding._replace(kind="tierkeys")


def _noted(store: MessageStore, tier: Tier) -> dict[tuple[str, QueueKey], _Lengths] | None:
    """Return the segments in the broker's notes, by kind and queue; None without a local store.

    Its notes lie there. Where neither they nor their copy can be read, a broker begins empty ones.

    Raises:
        CorruptConfigError: they are not a table of segments, or may not be read by this user.
    """
    if not store.parts.has_store:
        return None
    path = store.paths.config / METADATA
    try:
        table = load_table(store.paths.storage, path)
    except CorruptConfigError as err:
        if isinstance(err.__cause__, NotPermittedError):
            raise
        logger.warning("%s: a broker that starts begins with empty notes", err)
        return {}
    noted: dict[tuple[str, QueueKey], _Lengths] = {}
    for kind, name in _TABLES.items():
        for queue, segments in part_of(path, table, name).items():
            broker, topic, number = queue.rsplit("/", 2) if queue.count("/") > 1 else ("", "", "")
            if broker != tier.broker_name or not is_queue_id(number):
                continue
            try:
                lengths = {
                    integer(at): integer(segment["size"]) for at, segment in segments.items()
                }
            except (AttributeError, KeyError, TypeError, ValueError) as err:
                reason = f"the segments of {queue} are no table of lengths"
                raise CorruptConfigError(str(path), 0, reason) from err
            noted[kind, (topic, int(number))] = lengths
    return noted


def _segments(
    tier: Tier, key: QueueKey, kind: str, noted: dict[tuple[str, QueueKey], _Lengths] | None
) -> _Segments:
    folder = tier.folder / key[0] / str(key[1]) / kind
    there: _Lengths = {}
    others = []
    for entry in sorted(tier.storage.list_folder(folder)):
        start = segment_start(entry.name)
        # A broker opens a file by its full name, the digits before the offset included.
        if start is None or entry.name != segment_name(start) or entry.is_folder:
            others.append(entry.name)
        else:
            there[start] = tier.storage.size(folder / entry.name)
    return _Segments(folder, there, None if noted is None else noted.get((kind, key), {}), others)


def _of_files(part: _Segments, *, is_closed: bool, is_needed: bool = False) -> Iterator[Finding]:
    """Yield missing segments, those of another length, and stray files.

    Args:
        part: the segments.
        is_closed: whether the notes of the broker are as new as the segments.
        is_needed: whether segments that the notes lack may hold what nothing else has.
    """
    for name in part.others:
        text = "no segment of tiered storage has this name: a broker does not read the file"
        yield Finding("tier", str(part.folder / name), text, "stray")
    if part.noted is None:
        for before, after in pairwise(sorted(part.there)):
            end = before + part.there[before]
            if end != after:
                text = f"the segment ends at {end}, and the next one begins at {after}"
                yield Finding("tier", str(part.folder / segment_name(before)), text)
        return
    for start in sorted(part.there.keys() | part.noted.keys()):
        path = str(part.folder / segment_name(start))
        size = part.there.get(start)
        noted = part.noted.get(start)
        if noted is None:
            text = f"the broker has no note of this segment in {METADATA}, and does not read it"
            yield Finding("tier", path, text, "unnoted" if is_needed else "stray")
        elif size is None:
            text = (
                f"the segment of {noted:,} bytes is missing: a broker that starts makes an empty "
                "one in its place"
            )
            yield Finding("tier", path, text)
        # The broker notes the length of the newest one now and then.
        elif size < noted or (size > noted and (start != max(part.noted) or is_closed)):
            text = f"the segment has {size:,} bytes, and {noted:,} by the notes of the broker"
            yield Finding("tier", path, text, "stray" if size > noted else "")


def _of_messages(
    store: MessageStore,
    alone: MessageStore,
    key: QueueKey,
    parts: dict[str, _Segments],
    following: int | None,
) -> Iterator[Finding]:
    """Yield the unreadable messages of a queue, and what a broker does with the queue."""
    queue_name = f"{key[0]}-{key[1]}"
    width = QUEUE_UNIT.itemsize
    unit_segments = parts[CONSUME_QUEUE].there | parts[CONSUME_QUEUE].known
    segments = parts[COMMIT_LOG].there | parts[COMMIT_LOG].known
    if not unit_segments:
        return
    begin = min(unit_segments) // width
    end = (max(unit_segments) + unit_segments[max(unit_segments)]) // width
    if segments and min(segments) > 0:  # retention deletes records and units each for itself
        begin = max(begin, alone.parts.store_queues.range(*key)[0])
    local = store.parts.queues.part(*key) if store.parts.has_store else None
    local_start = local.start if local is not None and local.start < local.end else end
    units_end = parts[CONSUME_QUEUE].end
    if local is not None and units_end is not None and units_end // width < local_start:
        n_segments = sum(len(part.noted or ()) for part in parts.values())
        unserved = np.arange(begin, local_start)
        text = (
            f"a broker that starts deletes all {n_segments} segments of the queue: its units end "
            f"at queue offset {units_end // width}, and the local store begins at {local_start}; "
            f"it does not serve {named_offsets(unserved)}"
        )
        yield Finding("tier", queue_name, text, "deletes", unserved=ranges_of(unserved))
        return
    if following is None:
        following = FOREVER if local is None else local.units.end()
    if following < min(local_start, end):
        unserved = np.arange(max(begin, following), local_start)
        text = (
            f"a broker that starts does not serve {named_offsets(unserved)}: it gives out queue "
            f"offsets from {following} on again"
        )
        yield Finding(
            "tier", queue_name, text, "emptied", unserved=ranges_of(unserved), next_offset=following
        )
        return
    none = np.empty(0, np.int64)
    there, places = _valid(alone, key) if parts[CONSUME_QUEUE].there else (none, none)
    are_read = parts[CONSUME_QUEUE].are_read(there * width) & parts[COMMIT_LOG].are_read(places)
    only_here = np.setdiff1d(np.arange(begin, min(local_start, end)), there[are_read])
    elsewhere = np.setdiff1d(np.arange(max(begin, local_start), end), there)
    if len(only_here):
        text = f"a broker does not serve {named_offsets(only_here)}, which only the tier had"
        kind = ""
        if np.isin(only_here, there).any():
            text += f", in segments that its notes in {METADATA} lack"
            kind = "unnoted"
        yield Finding("tier", queue_name, text, kind, unserved=ranges_of(only_here))
    if len(elsewhere):
        text = (
            f"the tier lacks {named_offsets(elsewhere)}; a broker serves them until retention "
            "deletes them in the local store"
        )
        yield Finding("tier", queue_name, text)


def _valid(alone: MessageStore, key: QueueKey) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the queue offsets of a queue whose messages can be read, and those in its log."""
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    scan = alone.scan(
        assign={key[0]: [key[1]]},
        columns=["queueOffset", "commitLogOffset", "body"],
        mode="DROPMALFORMED",
        fail_on_data_loss=False,
    )
    found += [tuple(column.to_numpy() for column in batch.columns[:2]) for batch in scan]
    queue_offsets, places = (np.concatenate(column) for column in zip(*found, strict=True))
    return queue_offsets, places
