"""A session that reads tiered storage, alone or before the local store that it continues."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Unpack

import pyarrow as pa

from rmqstore.errors import NotAStoreError, OptionError, UnsupportedFeatureError
from rmqstore.query.arguments import FolderArguments
from rmqstore.query.conditions import NO_PRUNING, Pruning
from rmqstore.query.selection import LATEST, Bound, Selection
from rmqstore.read.open_store import QueueInfo
from rmqstore.read.plan.sampling import Sample, sample_queue
from rmqstore.read.scan.queue_scan import QueueScan
from rmqstore.read.scan.record_filter import LogFilter
from rmqstore.read.scan.spec import ReadSpec
from rmqstore.read.session import StoreSession
from rmqstore.read.store_kind import StoreKind, tiered_kind
from rmqstore.read.tiered.pruning import prune
from rmqstore.read.tiered.ranges import JoinedRanges
from rmqstore.spans import QueueKey, QueueSlice
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths, find_store
from rmqstore.storage.files.retry import retry_if_deleted
from rmqstore.storage.files.storage import Storage
from rmqstore.storage.queue.bounds import total_weight
from rmqstore.storage.queue.queue import Queue
from rmqstore.storage.remote.remote_storage import RemoteStorage
from rmqstore.storage.tiered.folders import Tier, find_tier, is_tier
from rmqstore.storage.tiered.no_files import NO_FILES
from rmqstore.storage.tiered.queues import TieredQueues


class TieredSession(StoreSession):
    """Reads the queues of a store, each with what tiered storage has of it before.

    Only reads by queue are supported. Whatever reads the log of a broker in its own order, its
    index or its files as they are would leave out what was moved, so it is refused.

    Args:
        paths: the local store; one without files where tiered storage is read alone.
        tier: what the broker of the store has in tiered storage.
        broker_name: value of column ``brokerName``.
        ignore_log_end: read the local store past the end of a log that was not closed.
    """

    def __init__(
        self,
        paths: StorePaths,
        tier: Tier,
        *,
        broker_name: str | None = None,
        ignore_log_end: bool = False,
    ) -> None:
        super().__init__(paths, broker_name=broker_name, ignore_log_end=ignore_log_end)
        self._tiered = TieredQueues(tier)
        self._joined = JoinedRanges(self.ranges, self._tiered)
        self._sample_bases: dict[QueueKey, int] = {}
        self._lowest_base = 0

    def close(self) -> None:
        """Release the mapped files. Batches that were read stay valid."""
        self._tiered.close()
        super().close()

    def refresh(self) -> None:
        """List the files again: those of a running broker come and go."""
        self._tiered.refresh()
        super().refresh()

    def kind(self) -> StoreKind:
        """Return the kind of the store, by the files that it has."""
        folder = self._tiered.tier.folder
        return tiered_kind(None if self._is_alone else self.paths, folder)

    @property
    def _is_alone(self) -> bool:
        return self.paths.storage is NO_FILES

    @property
    def is_tiered(self) -> bool:
        """Whether messages of the store are read from tiered storage."""
        return True

    def require_local(self, request: str) -> None:
        """Refuse a request that needs a log in the order of the broker, or its files.

        Raises:
            UnsupportedFeatureError: always, as some messages are in tiered storage.
        """
        advice = "read it by queue; a filter on columns finds messages too"
        if not self._is_alone:
            advice += "; without tiered= the local store is read alone"
        raise UnsupportedFeatureError(
            f"{request} is not supported with tiered storage ({self._tiered.tier.folder}), which "
            f"has a log for each queue in place of the broker's: {advice}"
        )

    def require_store(self, request: str) -> None:
        """Refuse a request that needs a local store, if only tiered storage is read.

        Raises:
            UnsupportedFeatureError: there is no local store; the text names the request.
        """
        if self._is_alone:
            self.require_local(request)

    def warn_of_messages_elsewhere(self) -> None:
        """Log where the store has messages that are not read."""
        self._warn_not_read(self.kind().not_read)

    def topics(self) -> list[str]:
        """Return every topic with queues, including system topics, sorted."""
        return self._joined.topics(super().topics())

    def queue_ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, sorted."""
        return self._joined.queue_ids(topic)

    def known_topics(self) -> list[str]:
        """Return every topic with queues or an entry in ``config/topics.json``, sorted."""
        return self._joined.topics(super().known_topics())

    def chosen_queues(self, selection: Selection) -> dict[str, list[int]]:
        """Return the chosen topics and their queues; see ``QueueRanges.choose``."""
        return self._joined.choose(selection, self.config)

    @retry_if_deleted
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset whose message is there and the one after the last."""
        self.ranges.require_plain_queues()
        return self._joined.range(topic, queue_id)

    @retry_if_deleted
    def queue_info(self, topic: str, queue_id: int) -> QueueInfo:
        """Return where a queue begins and ends, by offset and by time, and its bytes."""
        joined = self._joined.joined(topic, queue_id)
        if joined.start >= joined.end:
            return QueueInfo(topic, queue_id, joined.start, joined.end, None, None, 0)
        n_bytes = 0
        if joined.start < joined.tier_end:
            units = self._tiered.queue(topic, queue_id).units
            n_bytes += total_weight(units, joined.start, joined.tier_end)
        if joined.local_start < joined.end:
            units = self.queues.open(topic, queue_id)
            n_bytes += total_weight(units, joined.local_start, joined.end)
        # Where the newest messages are gone, the last time is that of the last one that is left.
        last = joined.end - 1 if joined.local_start < joined.end else joined.tier_end - 1
        return QueueInfo(
            topic,
            queue_id,
            joined.start,
            joined.end,
            self._stored_at(topic, queue_id, joined.start),
            self._stored_at(topic, queue_id, last),
            n_bytes,
        )

    def _stored_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        if queue_offset < self._joined.joined(topic, queue_id).tier_end:
            queue = self._tiered.queue(topic, queue_id)
            return queue.log.store_timestamp(queue.units.unit(queue_offset)[0])
        return self.log.store_timestamp(self.queues.open(topic, queue_id).unit(queue_offset)[0])

    @retry_if_deleted
    def at_time(self, topic: str, queue_id: int, timestamp: int, span: tuple[int, int]) -> int:
        """Return the first queue offset in a span that was stored at or after a time (ms)."""
        return self._joined.at_time(topic, queue_id, timestamp, span)

    def _resolved(
        self, selection: Selection, spec: ReadSpec, pruning: Pruning = NO_PRUNING
    ) -> Iterator[QueueSlice]:
        return self._joined.slices(
            selection,
            self.config,
            self.broker_name,
            fail_on_data_loss=spec.fail_on_data_loss,
            tolerant=spec.mode != "FAILFAST",
            pruning=pruning,
        )

    @retry_if_deleted
    def divide(self, slices: Sequence[QueueSlice]) -> tuple[list[QueueSlice], list[QueueSlice]]:
        """Return what of ranges of queues is read from tiered storage, and what of the log.

        Retention may have deleted messages of the local store since the ranges were planned, which
        tiered storage still has.
        """
        in_tier: list[QueueSlice] = []
        local: list[QueueSlice] = []
        boundaries: dict[QueueKey, int] = {}
        for piece in slices:
            key = (piece.topic, piece.queue_id)
            if key not in boundaries:
                boundaries[key] = self._joined.boundary(*key)
            cut = min(max(boundaries[key], piece.start), piece.end)
            if piece.start < cut:
                in_tier.append(piece._replace(end=cut))
            if cut < piece.end:
                local.append(piece._replace(start=cut))
        return in_tier, local

    @retry_if_deleted
    def prune_tiered(self, slices: list[QueueSlice], pruning: Pruning) -> list[QueueSlice]:
        """Return the parts of ranges in tiered storage that can meet conditions."""
        return [
            part
            for piece in slices
            for part in prune(self._tiered.queue(piece.topic, piece.queue_id), piece, pruning)
        ]

    def read_queues(self, slices: Sequence[QueueSlice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges of queues: first those in tiered storage, queue by queue.

        Those of the local store follow, in the order of its log.
        """
        in_tier, local = self.divide(slices)
        return chain(self._read_tiered(in_tier, spec), super().read_queues(local, spec))

    def plan_look_up(self, selection: Selection, spec: ReadSpec) -> list[QueueSlice]:
        """Return the ranges in tiered storage in which messages are looked up.

        The records decide about times.
        """
        whole = replace(selection, start=Bound(), end=Bound(LATEST))
        return self.divide(self.plan_queues(whole, spec))[0]

    def look_up(
        self, slices: Sequence[QueueSlice], spec: ReadSpec, wanted: LogFilter
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted messages in ranges of :meth:`plan_look_up`, all of which are read."""
        return self._read_tiered(slices, spec, wanted)

    def _read_tiered(
        self, slices: Sequence[QueueSlice], spec: ReadSpec, wanted: LogFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        # The CRC of a whole record covers its physical offset, which is another one here.
        spec = replace(spec, check_record_crc=False)
        for (topic, queue_id), pieces in groupby(slices, lambda piece: piece[:2]):
            log = self._tiered.queue(topic, queue_id).log
            scan = QueueScan(log, self._open_units, self.queues.open_ext, spec, wanted=wanted)
            yield from scan.batches([*pieces])

    def _open_units(self, topic: str, queue_id: int) -> Queue:
        return self._tiered.queue(topic, queue_id).units

    def sample(self, piece: QueueSlice, count: int) -> list[Sample]:
        """Return points of a queue; see ``sampling.Sampler.sample``.

        The logs of queues in tiered storage have no order among them. For planning, each of them
        lies before the log of the local store, at offsets below 0.
        """
        in_tier, local = self.divide([piece])
        samples = []
        for part in in_tier:
            base = self._sample_base(part.topic, part.queue_id)
            units = self._tiered.queue(part.topic, part.queue_id).units
            samples += [
                sample._replace(physical_offset=sample.physical_offset + base)
                for sample in sample_queue(units, part.start, part.end, count)
            ]
        for part in local:
            samples += super().sample(part, count)
        return samples

    def _sample_base(self, topic: str, queue_id: int) -> int:
        key = (topic, queue_id)
        if key not in self._sample_bases:
            log = self._tiered.queue(topic, queue_id).log
            self._lowest_base -= max(log.max_offset - log.min_offset, 1)
            self._sample_bases[key] = self._lowest_base - log.min_offset
        return self._sample_bases[key]


def open_session(
    path: str | os.PathLike[str],
    *,
    broker_name: str | None = None,
    ignore_log_end: bool = False,
    storage: Storage = LOCAL,
    tiered: str | os.PathLike[str] | None = None,
    **folders: Unpack[FolderArguments],
) -> StoreSession:
    """Open a store, or tiered storage, for reading.

    Args:
        path: the folder that holds ``commitlog/``, or a folder of tiered storage.
        broker_name: value of column ``brokerName``; taken from the store by default.
        ignore_log_end: read on past the end of a log that was not closed.
        storage: the storage that files are read from.
        tiered: the tiered storage with the older messages of the store.
        folders: folders that lie outside of ``path``.

    Raises:
        NotAStoreError: there is no store, or no tiered storage.
        OptionError: it is not clear which broker's messages are meant.
        UnsupportedFeatureError: it is of a kind that cannot be read.
    """
    try:
        paths = find_store(path, storage=storage, **folders)
    except NotAStoreError:
        if not is_tier(path, storage):
            raise
        return _open_tier(path, broker_name, storage, {**folders, "tiered": tiered})
    if tiered is None:
        return StoreSession(paths, broker_name=broker_name, ignore_log_end=ignore_log_end)
    if isinstance(storage, RemoteStorage):
        raise UnsupportedFeatureError(
            f"tiered=: {path} is not on a local disk; read the tiered storage by itself, by its URI"
        )
    name = broker_name or BrokerConfig(paths).broker_name()
    tier = find_tier(tiered, storage, name)
    return TieredSession(paths, tier, broker_name=broker_name, ignore_log_end=ignore_log_end)


def _open_tier(
    path: str | os.PathLike[str],
    broker_name: str | None,
    storage: Storage,
    others: dict[str, object],
) -> TieredSession:
    """Open tiered storage alone."""
    misplaced = sorted(name for name, value in others.items() if value)
    if misplaced:
        raise OptionError(f"{', '.join(misplaced)}: {path} is tiered storage, not a store")
    tier = find_tier(path, storage, broker_name)
    root = Path(tier.folder)
    no_store = StorePaths(root, (), root / "consumequeue", root / "index", NO_FILES)
    return TieredSession(no_store, tier, broker_name=broker_name or tier.broker_name)
