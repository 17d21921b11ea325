"""View ``index``: the items of index files as stored, with what is wrong with them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmqstore.errors import StoreStateError, UnreadableFileError
from rmqstore.format.layout import INDEX_HEADER, INDEX_ITEM, INDEX_SLOT
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.parts import ViewPart
from rmqstore.read.views.rows import Column, reasons, shown, times, to_batch, to_batches
from rmqstore.read.views.schema import DROPMALFORMED, ViewSpec
from rmqstore.storage.broker.store_config import StoreConfig
from rmqstore.storage.files.storage import StoredFile, path_of
from rmqstore.storage.index_files import IndexSizes, find_sizes_in_any, index_files, read_header

logger = logging.getLogger(__name__)

_ITEMS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class IndexPart(ViewPart):
    """Items ``[start, end)`` of one index file, by number.

    Attributes:
        reason: what is wrong with the file as a whole, if anything, which a row says.
    """

    path: str
    n_slots: int = 0
    start: int = 0
    end: int = 0
    reason: str = ""

    @property
    def n_bytes(self) -> float:
        return (self.end - self.start) * INDEX_ITEM.itemsize

    def read(self, source: StoreParts, spec: ViewSpec) -> Iterator[pa.RecordBatch]:
        path = path_of(self.path)
        if self.reason and spec.mode != DROPMALFORMED:
            row = {"file": path.name, "isValid": False, "reason": self.reason}
            yield from to_batches(spec, source, [row])
        if self.start >= self.end:
            return
        try:
            file = source.paths.storage.open(path)
        except FileNotFoundError:
            logger.warning("%s was deleted meanwhile", path)
            return
        except (OSError, UnreadableFileError) as err:
            logger.warning("%s cannot be read any more: %s", path, err)
            return
        with file:
            for start in range(self.start, self.end, _ITEMS_AT_ONCE):
                yield from _batch(source, spec, self, file, start)


def plan_index(source: StoreParts, _spec: ViewSpec, limits: Limits) -> list[IndexPart]:
    """Return one part for each index file, and several for a large one."""
    storage = source.paths.storage
    files = index_files(source.paths.index, storage)
    if not files:
        return []
    try:
        sizes = find_sizes_in_any(files, IndexSizes.of(StoreConfig()), storage)
    except StoreStateError as err:
        logger.warning("%s", err)
        return [IndexPart(str(file), reason=str(err)) for file in files]
    items_position = INDEX_HEADER.itemsize + sizes.n_slots * INDEX_SLOT.itemsize
    slices = []  # of each file, the items that its header counts and its length holds
    for file in files:
        whole = IndexPart(str(file), sizes.n_slots, 1, 1)
        try:
            header, length = read_header(file, storage), storage.size(file)
        except (OSError, UnreadableFileError) as err:
            slices.append(replace(whole, reason=str(err)))
            continue
        count = int(header["index_count"])
        room = min((length - items_position) // INDEX_ITEM.itemsize, sizes.n_items)
        reason = ""
        if count < 0 or count > room:
            reason = f"its header counts up to item {count}, the file has room for {max(room, 0)}"
            count = room
        elif length != sizes.file_size:
            reason = f"the file has {length} bytes, not {sizes.file_size}"
        slices.append(replace(whole, end=max(count, 1), reason=reason))
    total = sum(whole.end - whole.start for whole in slices) * INDEX_ITEM.itemsize
    goal = -(-limits.target(total) // INDEX_ITEM.itemsize)
    parts = []
    for whole in slices:
        for start in range(whole.start, max(whole.end, whole.start + 1), goal):
            end = min(start + goal, whole.end)
            # The first part of a file, which may be empty, says what is wrong with the file.
            reason = whole.reason if start == whole.start else ""
            parts.append(replace(whole, start=start, end=end, reason=reason))
    return parts


def _batch(
    source: StoreParts, spec: ViewSpec, index: IndexPart, file: StoredFile, start: int
) -> Iterator[pa.RecordBatch]:
    items_position = INDEX_HEADER.itemsize + index.n_slots * INDEX_SLOT.itemsize
    width = INDEX_ITEM.itemsize
    room = (file.size - items_position) // width
    count = max(min(start + _ITEMS_AT_ONCE, index.end, room) - start, 0)
    items = file.read(items_position + start * width, count * width).view(INDEX_ITEM)
    fields = {
        name: items[name].astype(INDEX_ITEM[name].newbyteorder("="))
        for name in INDEX_ITEM.names or ()
    }
    numbers = np.arange(start, start + len(items), dtype=np.int64)
    slots = np.maximum(fields["key_hash"], 0) % index.n_slots
    previous = fields["previous"]
    # A valid item leads to an older one, or ends its chain with 0.
    leads_back = (previous >= 0) & (previous < numbers)
    older = np.where(leads_back, previous, 0).astype(np.int64)
    older_items = file.read_each(items_position + older * width, width).view(INDEX_ITEM)
    older_hashes = older_items["key_hash"].astype(np.int64)
    older_slots = np.maximum(older_hashes, 0) % index.n_slots
    texts = {
        "never written": (fields["key_hash"] == 0)
        & (fields["physical_offset"] == 0)
        & (fields["seconds"] == 0)
        & (previous == 0)
        & (numbers > 1),
        "the hash is negative": fields["key_hash"] < 0,
        "previous is not an older item": ~leads_back,
        "previous is an item of another slot": leads_back & (previous > 0) & (older_slots != slots),
        "the physical offset is negative": fields["physical_offset"] < 0,
        "its record was deleted with its file": fields["physical_offset"] < source.log.min_offset,
    }
    faults = reasons(texts, len(numbers))
    header = file.read(0, INDEX_HEADER.itemsize).view(INDEX_HEADER)[0]
    first_time = np.int64(int(header["begin_timestamp"]))
    stored = first_time + fields["seconds"].astype(np.int64) * 1000
    columns: dict[str, Column] = {
        "file": pa.repeat(pa.scalar(Path(index.path).name), len(items)),
        "number": numbers.astype(np.int32),
        "slot": slots.astype(np.int32),
        "keyHash": fields["key_hash"],
        "commitLogOffset": fields["physical_offset"],
        "seconds": fields["seconds"],
        "storeTimestamp": times(stored),
        "previous": previous,
        "isValid": faults.is_null(),
        "reason": faults,
    }
    yield from shown(spec, to_batch(spec, source, columns, len(items)), faults)
