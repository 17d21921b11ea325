"""What a verb would change in a store, in words, without a change."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, Unpack

import numpy as np
import pyarrow as pa

from rmqstore.errors import RmqStoreError, number_of
from rmqstore.format.columns.encode import RecordColumns, require_room
from rmqstore.format.layout import SCHEDULE_TOPIC
from rmqstore.query.arguments import FolderArguments
from rmqstore.spans import QueueSlice
from rmqstore.storage.broker.folders import find_store
from rmqstore.storage.broker.store_config import StoreConfig, sizes_of
from rmqstore.storage.broker.topic_table import queue_nums
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.store.opening import is_store, new_root, open_for, require_appendable
from rmqstore.write.existing_store import (
    BrokerRelease,
    require_local,
    require_no_old_broker,
    require_writable,
    writable_config,
)
from rmqstore.write.messages import MessageMaker, WriteSpec
from rmqstore.write.repairer import RebuildPlan, plan_rebuild
from rmqstore.write.verbatim import verbatim_columns

_FEW: Final = 8  # topics, and queues of a topic, of which more are not listed
NO_ROWS: Final = "there are no rows, so nothing changes"


def planned_rebuild(
    path: str | os.PathLike[str],
    *,
    truncate: bool = False,
    broker_stopped: bool = False,
    **folders: Unpack[FolderArguments],
) -> list[str]:
    """Return what a rebuild of a store would change; see ``write.repairer``.

    Raises:
        UnsupportedFeatureError: the store is of a kind that cannot be written.
        StoreLockedError: a broker or a writer has the store.
        CorruptRecordError: good records follow damage of the log, and ``truncate`` is not set.
        StoreStateError: times of delivery follow a table of levels that nothing shows, or files
            are missing whose sizes nothing shows.
    """
    require_appendable(path)
    paths = find_store(path, **folders)
    plan = plan_of(paths, truncate=truncate, broker_stopped=broker_stopped)
    # Queues that only records of the log name count too. Damage hides how many there will be. The
    # plan says where the log ends, so the reader need not look for it, and warn of it, once more.
    with suppress(RmqStoreError), open_for(path, ignore_log_end=True, **folders) as store:
        n_queues = sum(len(store.queue_ids(topic)) for topic in store.topics())
        plan = plan._replace(n_queues=n_queues)
    return plan.lines()


def plan_of(paths: StorePaths, *, truncate: bool, broker_stopped: bool) -> RebuildPlan:
    """Return what a rebuild of a store would change.

    Raises:
        RmqStoreError: the rebuild would be refused, as :func:`planned_rebuild` says.
    """
    sizes = _sizes_of_writable(paths, broker_stopped=broker_stopped)
    sizes.require_delay_levels()
    return plan_rebuild(paths, sizes, truncate=truncate)


def _sizes_of_writable(paths: StorePaths, *, broker_stopped: bool) -> StoreConfig:
    """Return the sizes of the files of a store that a writer may open."""
    require_local(paths)
    if not broker_stopped:
        require_no_old_broker(paths)
    require_writable(paths)
    with closing(CommitLog(paths.commitlogs)) as log:
        return writable_config(paths, log)


def planned_append(
    path: str | os.PathLike[str],
    batches: Iterable[pa.RecordBatch],
    spec: WriteSpec,
    *,
    verbatim: bool = False,
    broker_stopped: bool = False,
    **folders: Unpack[FolderArguments],
) -> list[str]:
    """Return what an append of rows would change: a line for the store, and one for each topic.

    A new store is one that :func:`rmqstore.create` would make.

    All rows are looked at, so a row that would be refused is refused here.

    Args:
        path: the store, which need not exist.
        batches: the rows.
        spec: how messages are made of them.
        verbatim: whether the rows hold records as stored.
        broker_stopped: as for ``rmqstore.open``.
        folders: as for ``rmqstore.open``.

    Raises:
        IllegalMessageError: a row cannot be stored.
        StoreLockedError: a broker or a writer has the store.
        StoreStateError: a row is delayed, and the delays of the broker's levels are not known.
    """
    nums: dict[str, int] = {}
    release: BrokerRelease | None = None
    if is_store(path, **folders):
        paths = find_store(path, **folders)
        sizes = _sizes_of_writable(paths, broker_stopped=broker_stopped)
        release = BrokerRelease(paths, CommitLog(paths.commitlogs), spec.broker_version)
        plan = plan_rebuild(paths, sizes)
        nums = queue_nums(paths)
        lines = [f"{path}: rows are appended after physical offset {plan.log_end:,}"]
        lines += map(str, plan.log_changes)
    else:
        _, settings = new_root(path, folders.get("conf"))
        sizes = sizes_of(settings)
        lines = [f"{path}: a new store is made"]
    rows = _Rows()
    n_levels = sizes.n_delay_levels
    maker = MessageMaker(replace(spec, queue_nums=nums, n_delay_levels=n_levels))
    for batch in batches:
        columns = verbatim_columns(batch) if verbatim else maker.make(batch, rows.count + 1)
        if release is not None:
            release.require(columns.topics.names, columns.host_bits)
        if SCHEDULE_TOPIC in columns.topics.names:
            sizes.require_delay_levels()
        require_room(columns.sizes(), sizes.mapped_file_size_commit_log, rows.count + 1)
        rows.add(columns)
    for topic, count in sorted(rows.by_topic.items()):
        known = "" if topic in nums else ", a new topic"
        lines.append(f"{topic}{known}: {count:,} rows in {len(rows.queues[topic]):,} queues")
    if not rows.count:
        return [f"{path}: {NO_ROWS}"]
    return [*lines, f"{rows.count:,} rows of {len(rows.by_topic):,} topics"]


def done_append(
    path: str | os.PathLike[str], n_rows: int, taken: Iterable[QueueSlice]
) -> list[str]:
    """Return what an append of rows did: a line for the store, and one for each of a few topics.

    Args:
        path: the store.
        n_rows: how many rows were appended.
        taken: the queue offsets that they took, by topic.
    """
    topics = {topic: list(queues) for topic, queues in groupby(taken, attrgetter("topic"))}
    lines = [f"{path}: {n_rows:,} {'row was' if n_rows == 1 else 'rows were'} appended"]
    for topic, queues in islice(topics.items(), _FEW):
        texts = []
        for queue in queues[:_FEW]:
            offsets = f"offsets {queue.start} to {queue.end - 1}"
            if queue.end - queue.start == 1:
                offsets = f"offset {queue.start}"
            texts.append(f"{queue.queue_id} ({offsets})")
        if len(queues) > _FEW:
            texts.append(f"and {number_of(len(queues) - _FEW, 'more queue')}")
        n_messages = sum(queue.end - queue.start for queue in queues)
        messages = f"{n_messages:,} {'message' if n_messages == 1 else 'messages'}"
        count = number_of(len(queues), "queue")
        lines.append(f"{topic}: {messages} in {count}: {', '.join(texts)}")
    if len(topics) > _FEW:
        lines.append(f"and {number_of(len(topics) - _FEW, 'more topic')}")
    return lines


class _Rows:
    """Counts rows by topic, and the queues that they go to."""

    def __init__(self) -> None:
        self.by_topic: Counter[str] = Counter()
        self.queues: dict[str, set[int]] = {}

    @property
    def count(self) -> int:
        """The number of all rows."""
        return self.by_topic.total()

    def add(self, columns: RecordColumns) -> None:
        """Count the rows of a batch."""
        for code, topic in enumerate(columns.topics.names):
            queue_ids = columns.queue_ids[columns.topics.codes == code]
            if not len(queue_ids):  # as of a topic all of whose rows are delayed
                continue
            self.by_topic[topic] += len(queue_ids)
            self.queues.setdefault(topic, set()).update(np.unique(queue_ids).tolist())
