"""Compares the index with the log: missing keys, unreachable keys and items without a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import Finding, NotPermittedError, RmqStoreError
from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.dispatch_requests import (
    DispatchRequests,
    are_indexed,
    index_keys,
    topic_names,
)
from rmqstore.format.columns.property_decode import parse_entries, property_column
from rmqstore.format.columns.record_headers import RecordHeaders
from rmqstore.format.layout import INDEX_ITEM, PROPERTY_TAGS, Bytes, Mask, SysFlag
from rmqstore.inspect.broker_start import BrokerStart
from rmqstore.spans import FOREVER, Span
from rmqstore.storage.broker.broker_run import read_checkpoint
from rmqstore.storage.broker.store_config import StoreConfig, sizes_of
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import Storage
from rmqstore.storage.index_files import (
    IndexFile,
    IndexSizes,
    find_sizes_in_any,
    index_files,
    read_header,
)
from rmqstore.storage.index_search import may_be_stored_within

_NO_KEYS = np.empty(0, np.int64)
_FileRows = tuple[IndexFile, slice]  # a file, and the rows of its items among those of all files
_PAIR_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # spreads offsets over all 64 bits


class TagKeys(NamedTuple):
    """The index keys of the tags of m records, in the order of the log."""

    physical_offsets: NDArray[np.int64]  # (m,)
    hashes: NDArray[np.int32]  # (m,)


def read_tag_keys(buf: Bytes, headers: RecordHeaders) -> TagKeys:
    """Read the keys under which brokers from 5.4 on index the tags of records."""
    encoded = topics(buf, headers).dictionary_encode()
    entries = parse_entries(buf, headers.property_starts, headers.property_lengths)
    rows, hashes = index_keys(
        topic_names(encoded),
        encoded.indices.to_numpy(),
        are_indexed(headers.column("sys_flag")),
        uniq_keys=None,
        keys=None,
        tags=property_column(entries, PROPERTY_TAGS),
    )
    return TagKeys(headers.column("physical_offset")[rows].astype(np.int64), hashes)


class KeysOfLog:
    """The keys of all records that were read, in the order of the log."""

    def __init__(self) -> None:
        self._offsets: list[NDArray[np.int64]] = []
        self._hashes: list[NDArray[np.int32]] = []
        self._physical_offsets: list[NDArray[np.int64]] = []
        self._times: list[NDArray[np.int64]] = []
        self._tags: list[TagKeys] = []
        self._commits: list[NDArray[np.int64]] = []

    def add(self, requests: DispatchRequests, tags: TagKeys, sys_flags: NDArray[np.int32]) -> None:
        """Add the keys of further records, in the order of the log.

        Args:
            requests: the dispatch requests of n records.
            tags: the keys that their tags would have.
            sys_flags: their sysFlag, (n,).
        """
        self._tags.append(tags)
        offsets = requests.units.units["physical_offset"].astype(np.int64)
        kinds = sys_flags & np.int32(SysFlag.TRANSACTION_TYPE)
        self._commits.append(offsets[kinds == SysFlag.TRANSACTION_COMMIT])
        self._offsets.append(offsets[requests.key_rows])
        self._hashes.append(requests.key_hashes)
        self._physical_offsets.append(offsets)
        self._times.append(requests.units.store_timestamps)

    def stored_at(self, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], Mask]:
        """Return the store times of the records at physical offsets.

        Returns:
            The times, ms (n,), and a mask (n,) of the offsets at which a record begins.
        """
        physical_offsets, times = (
            np.concatenate([*parts, np.zeros(1, np.int64)])
            for parts in (self._physical_offsets, self._times)
        )
        rows = np.searchsorted(physical_offsets[:-1], offsets)
        return times[rows], physical_offsets[rows] == offsets

    def are_of_commits(self, offsets: NDArray[np.int64]) -> Mask:
        """Return which records at physical offsets (n,) commit a transaction."""
        mask: Mask = np.isin(offsets, np.concatenate([*self._commits, _NO_KEYS]))
        return mask

    def of_tags(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return offsets and hashes of the keys of tags, which only brokers from 5.4 on index."""
        offsets, hashes = zip(*self._tags, strict=True) if self._tags else ((), ())
        return np.concatenate([*offsets, _NO_KEYS]), np.concatenate([*hashes, _NO_KEYS])

    def of_messages(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return offsets and hashes of the keys that all brokers index."""
        return np.concatenate([*self._offsets, _NO_KEYS]), np.concatenate([*self._hashes, _NO_KEYS])


def index_findings(
    paths: StorePaths,
    keys: KeysOfLog,
    log_start: int,
    gaps: Iterable[Span],
    broker: BrokerStart | None,
    log_end: int = FOREVER,
) -> Iterator[Finding]:
    """Yield the faults of the index.

    Args:
        paths: the files of the store.
        keys: the keys of all records of its log.
        log_start: physical offset where the log begins.
        gaps: the parts of the log in which no complete record lies.
        broker: what a broker that starts would do, None if it is not known.
        log_end: physical offset from which on a running broker may still be adding keys.
    """
    opened, findings = _open(index_files(paths.index, paths.storage), paths.storage)
    yield from findings
    if not opened and (findings or not may_have_index(paths)):
        return
    items = np.concatenate([np.empty(0, INDEX_ITEM), *(file.items() for file in opened)])
    bounds = pairwise(accumulate((file.n_items for file in opened), initial=0))
    files = [(file, slice(*own)) for file, own in zip(opened, bounds, strict=True)]
    offsets = items["physical_offset"].astype(np.int64)
    hashes = items["key_hash"].astype(np.int64)
    hidden_of_files = (file.hidden(items[rows]) for file, rows in files)
    hidden = np.concatenate([np.empty(0, np.bool_), *hidden_of_files])
    # An interrupted put leaves items that no slot leads to. A recovery puts their keys a second
    # time, and the second item can be reached.
    pairs = _pairs(offsets, hashes)
    reachable = pairs[~hidden]
    is_added = offsets >= log_end
    for file, rows in files:
        lost = pairs[rows][hidden[rows] & ~is_added[rows]]
        n_lost = int((~_are_among(lost, reachable)).sum()) if len(lost) else 0
        if n_lost:
            text = f"{n_lost} keys are not in the chain of their slot"
            yield Finding("index", str(file.path), text)
    stored, is_known = keys.stored_at(offsets)
    yield from _late(files, items, stored, is_known)
    if broker is not None:
        yield from _deleted(paths, files, items, is_known, broker)
    inside = (offsets >= log_start) & ~is_added
    yield from _other_keys(paths, keys, gaps, offsets[inside], hashes[inside])


def may_have_index(paths: StorePaths) -> bool:
    """Return whether index files are there, or a broker that has written some may write more.

    A broker never deletes the newest one.

    Source: IndexService.java#deleteExpiredFile.
    """
    if index_files(paths.index, paths.storage):
        return True
    was_written = read_checkpoint(paths).index_msg_timestamp > 0
    return was_written and sizes_of(paths.settings).message_index_enable


def _other_keys(
    paths: StorePaths,
    keys: KeysOfLog,
    gaps: Iterable[Span],
    offsets: NDArray[np.int64],
    hashes: NDArray[np.int64],
) -> Iterator[Finding]:
    """Yield findings of keys without an item, and of items without a key in their record.

    Args:
        paths, keys, gaps: as for :func:`index_findings`.
        offsets: the physical offsets of all items, (n,).
        hashes: the hashes of their keys, (n,).
    """
    key_offsets, key_hashes = keys.of_messages()
    of_items = _pairs(offsets, hashes)
    of_keys = _pairs(key_offsets, key_hashes)
    is_found = _are_among(of_keys, of_items)
    # Brokers before 4.0 index no key of a commit, because the half message has the same keys.
    commits = keys.are_of_commits(key_offsets)
    first_commit = key_offsets[commits & is_found].min(initial=FOREVER)
    missing = np.flatnonzero(~is_found & (~commits | (key_offsets >= first_commit)))
    if len(missing):
        text = (
            f"{len(missing)} keys are not in an index file, "
            f"the first of them of the record at {key_offsets[missing[0]]}"
        )
        yield Finding("index", str(paths.index), text)
    of_tags = _pairs(*keys.of_tags())
    is_extra = ~_are_among(of_items, of_keys) & ~_are_among(of_items, of_tags)
    extra = offsets[is_extra]
    starts, ends = np.array([[-1, -1], *sorted(gaps)], np.int64).T
    of_lost = extra < ends[np.searchsorted(starts, extra, side="right") - 1]
    if of_lost.any():
        text = f"{int(of_lost.sum())} items lead to records that are lost"
        yield Finding("index", str(paths.index), text)
    others = extra[~of_lost]
    if len(others):
        text = (
            f"{len(others)} items do not belong to a key of their record, "
            f"the first of them of the record at {others[0]}"
        )
        yield Finding("index", str(paths.index), text)


def _open(paths: list[Path], storage: Storage) -> tuple[list[IndexFile], list[Finding]]:
    """Return the index files with items that can be read, and findings about the others.

    Headers are findings as well that name another first record than the items, or a later last
    record. An earlier last record is not a fault: an interrupted put leaves it, and a search reads
    the log from there on.
    """
    opened: list[IndexFile] = []
    filled = [path for path in paths if not _is_unused(path, storage)]
    if not filled:
        return opened, []
    try:
        sizes = find_sizes_in_any(filled, IndexSizes.of(StoreConfig()), storage)
    except NotPermittedError:
        raise
    except RmqStoreError as err:
        return opened, [Finding("index", str(paths[0].parent), str(err))]
    findings = []
    for path in filled:
        try:
            opened.append(IndexFile(path, sizes, storage))
        except NotPermittedError:
            raise
        except (RmqStoreError, FileNotFoundError) as err:
            findings.append(Finding("index", str(path), str(err)))
    for file in opened:
        items = file.items()["physical_offset"]
        first = int(file.header["begin_phy_offset"])
        last = int(file.header["end_phy_offset"])
        if len(items) and (first != int(items[0]) or last > int(items[-1])):
            text = (
                f"the header says records from {first} to {last}, "
                f"the items {int(items[0])} to {int(items[-1])}"
            )
            findings.append(Finding("index", str(file.path), text))
    return opened, findings


def _is_unused(path: Path, storage: Storage) -> bool:
    """Return whether a file holds no items.

    Its length does not matter then. A broker that dies while it makes a file leaves it empty, and
    the next one maps as many bytes as its configuration says, which extends the file.

    Source: DefaultMappedFile.java#init, IndexHeader.java#load.
    """
    try:
        header = read_header(path, storage)
        if storage.size(path) < header.nbytes:  # a part of a header is what is left of a file
            return not any(header.tobytes())
    except (RmqStoreError, FileNotFoundError):
        return False
    return int(header["index_count"]) <= 1


def _pairs(offsets: NDArray[np.int64], hashes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a number that stands for each pair of offset and hash, (n,)."""
    pairs: NDArray[np.uint64] = offsets.astype(np.uint64) * _PAIR_FACTOR
    pairs += hashes.astype(np.uint64)
    return pairs


def _are_among(numbers: NDArray[np.uint64], others: NDArray[np.uint64]) -> Mask:
    """Return which numbers are among others, (n,).

    Sorting both is much faster than the hash table of ``numpy.isin``, and than a search for each
    number, which waits for memory.
    """
    mask: Mask = np.zeros(len(numbers), np.bool_)
    if len(others):
        rising = np.sort(others)
        order = np.argsort(numbers)
        ordered = numbers[order]
        rows = np.minimum(np.searchsorted(rising, ordered), len(rising) - 1)
        mask[order] = rising[rows] == ordered
    return mask


def _deleted(
    paths: StorePaths,
    files: list[_FileRows],
    items: NDArray[np.void],
    known: Mask,
    broker: BrokerStart,
) -> Iterator[Finding]:
    """Yield index files that a starting broker deletes, with the number of items that it loses.

    Source: IndexService.java#load.
    """
    n_files = n_items = 0
    is_lost = known & (items["physical_offset"] < broker.built_from)
    for file, rows in files:
        if int(file.header["end_timestamp"]) > broker.keys_until:
            n_files += 1
            n_items += int(is_lost[rows].sum())
    if n_items:
        text = (
            f"a broker that starts deletes {n_files} index files, and does not build {n_items} of "
            "their items again"
        )
        yield Finding("index", str(paths.index), text, "keys")


def _late(
    files: list[_FileRows],
    items: NDArray[np.void],
    stored: NDArray[np.int64],
    known: Mask,
) -> Iterator[Finding]:
    """Yield files with items whose seconds hide their records from a search by time.

    Args:
        files: the index files of the store.
        items_of_files: the items of each file.
        stored: the store time of each item's record, ms, file after file.
        known: whether the record of each item exists.
    """
    for file, rows in files:
        begin_timestamp = int(file.header["begin_timestamp"])
        numbers = np.arange(1, file.n_items + 1)
        times = stored[rows]
        late = known[rows] & ~may_be_stored_within(
            items[rows], numbers, begin_timestamp, times, times
        )
        if late.any():
            text = f"{int(late.sum())} items have other times than their records"
            yield Finding("index", str(file.path), text)
