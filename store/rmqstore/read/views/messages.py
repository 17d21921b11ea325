"""Messages as views read them: by queue, in parts, and with damage as rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from rmqstore.errors import FileDeletedError, OptionError, RmqStoreError
from rmqstore.format.schema import ALL_COLUMNS
from rmqstore.query.damage import CORRUPT_RECORD
from rmqstore.query.selection import Selection, choose_topics
from rmqstore.read.parts import QueuesPart
from rmqstore.read.plan import queues_part
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.parts import RowsPart, ViewPart
from rmqstore.read.views.queues import warn_of_rocksdb
from rmqstore.read.views.rows import Row
from rmqstore.read.views.schema import ViewSpec
from rmqstore.storage.recovery.store_ends import PlannedEnds

logger = logging.getLogger(__name__)

REASON: Final = "reason"
_IN_EVERY_VIEW: Final = ("queueId", "queueOffset", "commitLogOffset")


class Committed(NamedTuple):
    """What groups have committed.

    Attributes:
        offsets: by topic, group and queue id: the next queue offset to consume.
        unknown: why these are not known, if they are not.
    """

    offsets: dict[str, dict[str, dict[int, int]]]
    unknown: str | None


@dataclass(frozen=True)
class MessagesPart(ViewPart):
    """Messages of queues.

    Attributes:
        rows: makes the rows of a part.
        queues: the messages.
        n_bytes: see :class:`ViewPart`.
        committed: what groups have committed of their topics, where the rows need that.
    """

    rows: Rows
    queues: QueuesPart
    n_bytes: float = 0.0
    committed: Committed | None = None

    @property
    def ends(self) -> PlannedEnds | None:
        return self.queues.ends

    def read(self, source: StoreParts, spec: ViewSpec) -> Iterator[pa.RecordBatch]:
        return self.rows(source, spec, self)

    def messages(
        self, source: StoreParts, spec: ViewSpec, columns: Iterable[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages with some columns, and with :data:`CORRUPT_RECORD`.

        The rows of damaged records have that column, and of the others what is known.
        """
        request = _request(spec, spec.selection, {*columns, *_IN_EVERY_VIEW, "topic"})
        try:
            yield from self.queues.read(source, request)
        except (RmqStoreError, OSError) as err:
            logger.warning("%s: the rest of a part of the queues: %s", source.paths.root, err)
            row = {CORRUPT_RECORD: str(err)}
            yield pa.RecordBatch.from_pylist([row], schema=request.schema)


Rows: TypeAlias = Callable[[StoreParts, ViewSpec, MessagesPart], Iterator[pa.RecordBatch]]


def plan_messages(
    source: StoreParts, spec: ViewSpec, limits: Limits, topics: Iterable[str], rows: Rows
) -> list[ViewPart]:
    """Return the messages of those of some topics that a view chooses, in parts.

    Each part is one of the log. The queues that cannot be read are a last one, with the reasons.
    """
    warn_of_rocksdb(source, spec)
    selection = replace(spec.selection, include_system_topics=True)
    chosen = choose_topics(selection, sorted(topics))
    if not chosen:
        return []
    if selection.assign is None:
        selection = replace(selection, subscribe=tuple(chosen), subscribe_pattern=None)
    else:
        assigned = {topic: selection.assign[topic] for topic in chosen}
        selection = replace(selection, assign=assigned)
    try:
        return _split(source, spec, limits, selection, rows)
    except (OptionError, FileDeletedError):
        raise
    except (RmqStoreError, OSError):
        return _queue_by_queue(source, spec, limits, selection, rows)


def _split(
    source: StoreParts, spec: ViewSpec, limits: Limits, selection: Selection, rows: Rows
) -> list[ViewPart]:
    slices = source.ranges.resolve(selection, _request(spec, selection).spec())
    whole = queues_part(source, [*slices], limits)
    parts = whole.split(limits)
    n_bytes = whole.n_bytes / max(len(parts), 1)
    return [MessagesPart(rows, part, n_bytes) for part in parts]


def _queue_by_queue(
    source: StoreParts, spec: ViewSpec, limits: Limits, selection: Selection, rows: Rows
) -> list[ViewPart]:
    """Return the parts of each queue alone, and one with the reasons for those that have none."""
    parts: list[ViewPart] = []
    faults: list[tuple[str, int, str]] = []
    keys = [
        (topic, queue_id)
        for topic in selection.subscribe or selection.assign or ()
        for queue_id in source.store_queues.ids(topic)
        if selection.assign is None or queue_id in selection.assign[topic]
    ]
    for topic, queue_id in keys:
        alone = replace(selection, subscribe=None, assign={topic: frozenset([queue_id])})
        try:
            parts += _split(source, spec, limits, alone, rows)
        except FileDeletedError:
            raise
        except (RmqStoreError, OSError) as err:
            logger.warning("%s-%d: %s", topic, queue_id, err)
            faults.append((topic, queue_id, str(err)))
    if faults:
        parts.append(RowsPart(_fault_rows, faults))
    return parts


def _fault_rows(
    _source: StoreParts, spec: ViewSpec, faults: Sequence[tuple[str, int, str]]
) -> Iterator[Row]:
    """Yield a row for each queue that cannot be read, with the reason."""
    topic_column = "traceTopic" if "traceTopic" in spec.schema.names else "topic"
    for topic, queue_id, reason in faults:
        yield {topic_column: topic, "queueId": queue_id, REASON: reason}


def _request(spec: ViewSpec, selection: Selection, columns: Collection[str] = ()) -> ScanRequest:
    fields = [column for column in ALL_COLUMNS if column.name in columns]
    return ScanRequest(
        schema=pa.schema([*fields, pa.field(CORRUPT_RECORD, pa.string())]),
        selection=selection,
        mode=spec.mode,
        check_crc=spec.check_crc,
        fail_on_data_loss=False,
    )
