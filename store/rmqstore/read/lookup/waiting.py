"""What waits in system topics for its delivery: read, and compared with what was delivered."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.layout import Mask, Positions
from rmqstore.format.schema import select_columns
from rmqstore.query.keys import Wanted
from rmqstore.query.selection import Selection, parse_selection
from rmqstore.read.lookup.finder import Finder
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.spec import DROPMALFORMED, FAILFAST, ReadSpec
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.paths import StorePaths

logger = logging.getLogger(__name__)
_QUEUE_ID_DIGITS = 9
_STORED = ("topic", "queueId", "queueOffset", "commitLogOffset", "properties")
_QUEUED = (*_STORED, "tags", "body", "tagsCode")


class PendingSource(Protocol):
    """The methods of ``read.session.StoreSession`` that this module uses."""

    paths: StorePaths
    config: BrokerConfig

    def topics(self) -> list[str]: ...
    def queue_ids(self, topic: str) -> list[int]: ...
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def plan_queues(self, selection: Selection, spec: ReadSpec) -> list[QueueSlice]: ...
    def read_queues(
        self, slices: Sequence[QueueSlice], spec: ReadSpec
    ) -> Iterator[pa.RecordBatch]: ...

    @property
    def finder(self) -> Finder: ...


class PendingRows(NamedTuple):
    """Pending messages, (n,) each, in the order of the log."""

    places: Positions
    topics: pa.Array  # string, the real topics
    queue_ids: pa.Array  # int32
    kinds: pa.Array  # string: transaction, delay or timer
    due: pa.Array  # int64, ms; null for transactions

    def take(self, rows: Positions | Mask) -> PendingRows:
        """Return the chosen rows."""
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        columns = (column.take(pa.array(numbers)) for column in self[1:])
        return PendingRows(self.places[numbers], *columns)

    @classmethod
    def joined(cls, parts: Sequence[PendingRows]) -> PendingRows:
        """Return the rows of all parts, in the order of the log."""
        places = np.concatenate([part.places for part in parts])
        columns = (
            pa.concat_arrays(column) for column in zip(*(part[1:] for part in parts), strict=True)
        )
        return cls(places, *columns).take(np.argsort(places, kind="stable"))


# pa.nulls rather than pa.array: at its first call pa.array imports pandas, if that is installed,
# and this line runs in every process.
NOTHING_PENDING: Final = PendingRows(
    np.empty(0, np.int64),
    *(pa.nulls(0, kind) for kind in (pa.string(), pa.int32(), pa.string(), pa.int64())),
)


class Waiting(NamedTuple):
    """Messages of a system topic, and what their properties say about delivery, (n,) each."""

    table: pa.Table
    topics: pa.Array
    queue_ids: pa.Array
    uniq_keys: pa.Array

    @classmethod
    def of(cls, table: pa.Table) -> Self | None:
        """Return the messages of a table, None if it has no rows."""
        table = table.combine_chunks()
        if not table.num_rows:
            return None
        queue_ids = integers(_property(table, "REAL_QID"), _QUEUE_ID_DIGITS).cast(pa.int32())
        return cls(table, _property(table, "REAL_TOPIC"), queue_ids, _property(table, "UNIQ_KEY"))

    @property
    def places(self) -> Positions:
        places: Positions = self.table.column("commitLogOffset").to_numpy()
        return places

    def property(self, name: str) -> pa.Array:
        return _property(self.table, name)

    def rows(self, is_pending: Mask, kind: str, due: pa.Array) -> PendingRows:
        """Return the pending messages among these.

        Those that name no real topic and queue are logged and left out.
        """
        has_target = pc.and_(self.topics.is_valid(), self.queue_ids.is_valid())
        is_addressed = has_target.to_numpy(zero_copy_only=False)
        n_lost = np.count_nonzero(is_pending & ~is_addressed)
        if n_lost:
            logger.warning("%d pending messages name no real topic and queue: left out", n_lost)
        kinds = pa.array([kind] * len(due), pa.string())
        rows = PendingRows(self.places, self.topics, self.queue_ids, kinds, due)
        return rows.take(is_pending & is_addressed)


def read_waiting(
    store: PendingSource, topic: str, starts: dict[int, int], spec: ReadSpec
) -> Waiting | None:
    """Read a system topic, each queue from the offset up to which the broker has delivered.

    None if there is nothing to read.
    """
    if topic not in store.topics():
        return None
    spans = {queue_id: store.queue_range(topic, queue_id) for queue_id in store.queue_ids(topic)}
    offsets = {
        queue_id: min(max(starts.get(queue_id, 0), low), high)
        for queue_id, (low, high) in spans.items()
    }
    own = _own_spec(spec, _QUEUED)
    selection = parse_selection(subscribe=[topic], starting_offsets={topic: offsets})
    slices = store.plan_queues(selection, own)
    return Waiting.of(pa.Table.from_batches(store.read_queues(slices, own), own.schema))


def read_waiting_at(
    store: PendingSource, topic: str, places: Positions, spec: ReadSpec
) -> Waiting | None:
    """Read records of a system topic at physical offsets (n,), rising.

    Where there is none, any more or at all, nothing is read; None if there is nothing to read.
    """
    own = _own_spec(spec, _STORED)
    batches = store.finder.read_places(places, own, LogFilter())
    table = pa.Table.from_batches(batches, own.schema)
    return Waiting.of(table.filter(pc.equal(table.column("topic"), topic)))


def _own_spec(spec: ReadSpec, columns: Sequence[str]) -> ReadSpec:
    return replace(
        spec,
        schema=select_columns(columns),
        mode=FAILFAST if spec.mode == FAILFAST else DROPMALFORMED,
        tags=None,
        filter=None,
    )


def _property(table: pa.Table, name: str) -> pa.Array:
    values = pc.map_lookup(table.column("properties"), name, "last")
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def integers(texts: pa.Array, digits: int = 18) -> pa.Array:
    """Return integers of at most ``digits`` digits, int64 (n,); null for any other text."""
    is_integer = pc.match_substring_regex(texts, f"^[0-9]{{1,{digits}}}$")
    return pc.if_else(is_integer, texts, None).cast(pa.int64())


def are_newest(waiting: Waiting) -> Mask:
    """Return a mask (n,) of the newest message of each UNIQ_KEY.

    Checks of transactions and rolls of the timer store a message again.
    """
    newest = np.zeros(len(waiting.places), np.bool_)
    seen = set[str]()
    for row in np.argsort(-waiting.places, kind="stable").tolist():
        key = waiting.uniq_keys[row].as_py()
        newest[row] = key is None or key not in seen
        if key is not None:
            seen.add(key)
    return newest


def have_copies(
    store: PendingSource, waiting: Waiting, candidates: Mask, *, later: bool = True
) -> Mask:
    """Return a mask (n,) of the candidates whose UNIQ_KEY a later record of their real topic has.

    Args:
        store: the store to read from.
        waiting: the messages of the system topic.
        candidates: mask (n,) of those to look up.
        later: whether that record must be later than the candidate itself; if not, than the first
            of all messages.
    """
    are_delivered = np.zeros(len(waiting.places), np.bool_)
    rows = np.flatnonzero(candidates & waiting.uniq_keys.is_valid().to_numpy(zero_copy_only=False))
    keys = set(waiting.uniq_keys.take(pa.array(rows)).to_pylist())
    topics = sorted(set(waiting.topics.take(pa.array(rows)).drop_null().to_pylist()))
    if not keys or not topics:
        return are_delivered
    latest: dict[tuple[str, str], int] = {}
    first = int(waiting.places.min())
    for batch in store.finder.copies(Wanted(msg_ids=frozenset(keys)), topics, first):
        for row in batch.to_pylist():
            # Physical offsets ascend, so the last one stays.
            latest[row["topic"], row["msgId"]] = row["commitLogOffset"]
    for row in rows.tolist():
        key = (waiting.topics[row].as_py(), waiting.uniq_keys[row].as_py())
        are_delivered[row] = latest.get(key, -1) > (waiting.places[row] if later else first)
    return are_delivered
