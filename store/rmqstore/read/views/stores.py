"""View ``stores``: the stores of one read by broker, and the one that is read of each.

A master and its replicas have the same log, as far as each of them has got, so one of them is
read: the master, or else the one with the longest log. In controller mode the ids of brokers say
nothing about their roles. There the log with the newest epoch is read: after the point where
another log parts from it, that broker would cut its own.

Source: EpochFileCache.java#findConsistentPoint, AutoSwitchHAClient.java.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from rmqstore.errors import CorruptConfigError, OptionError, RmqStoreError
from rmqstore.lazy import cached_property
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.rows import Row
from rmqstore.read.views.schema import ViewSpec
from rmqstore.storage.broker.epochs import Epoch, read_epochs
from rmqstore.storage.broker.identity import MASTER_ID, BrokerIdentity
from rmqstore.storage.log.commitlog import begins_record
from rmqstore.storage.recovery.log_end import last_record_before

logger = logging.getLogger(__name__)

_COMPARED = 32  # records of two logs, besides the last one that both have


@dataclass(frozen=True)
class Member:
    """One store of a read, with what distinguishes it from others of the same broker."""

    source: StoreParts

    @property
    def path(self) -> str:
        """The root of the store."""
        return str(self.source.paths.root)

    @cached_property
    def identity(self) -> BrokerIdentity:
        """What its files say about the broker; nothing if they are damaged."""
        try:
            return self.source.config.identity()
        except CorruptConfigError as err:
            logger.warning("%s", err)
            return BrokerIdentity()

    @property
    def is_named(self) -> bool:
        """Whether a user or the store names the broker. Otherwise it has the folder's name."""
        return self.source.given_name is not None or self.identity.name is not None

    @cached_property
    def epochs(self) -> list[Epoch]:
        """The epochs of its log; none without controller mode, or if their file is damaged."""
        try:
            return read_epochs(self.source.paths)
        except CorruptConfigError as err:
            logger.warning("%s", err)
            return []

    @property
    def has_controller(self) -> bool:
        """Whether a controller says which broker is the master."""
        return self.source.paths.storage.exists(self.source.paths.epochs)

    @property
    def last_epoch(self) -> int:
        """The number of its newest epoch, -1 without controller mode."""
        return self.epochs[-1].number if self.epochs else -1

    @property
    def log_start(self) -> int:
        """The physical offset of the first file of its log."""
        return self.source.log.min_offset

    @cached_property
    def log_end(self) -> int:
        """The physical offset after the last record of its log."""
        return self.source.ends.end_of_records()

    def epoch_end(self, number: int) -> int:
        """Return where an epoch of its log ends."""
        later = (epoch.start_offset for epoch in self.epochs if epoch.number > number)
        return next(later, self.log_end)


@dataclass(frozen=True)
class Broker:
    """A broker and its stores.

    Attributes:
        name: the broker's name.
        chosen: the store that is read.
        replicas: the other stores of the broker.
        faults: why the stores do not belong together, if they do not.
    """

    name: str
    chosen: Member
    replicas: tuple[Member, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[Member, ...]:
        """All its stores, the one that is read first."""
        return (self.chosen, *self.replicas)

    def require_valid(self) -> None:
        """Refuse stores of one name that are not replicas of each other.

        Raises:
            OptionError: two stores disagree; the error names both.
        """
        if self.faults:
            raise OptionError(
                f"{self.faults[0]}; give only one of the two, or set `broker_name` to "
                "different names if they are of different brokers"
            )

    def note(self, replica: Member) -> str:
        """Return in words why a replica is not read."""
        role = "the master" if self.chosen.identity.broker_id == MASTER_ID else "the longest log"
        if self.chosen.last_epoch >= 0:
            role = f"the log with the newest epoch, {self.chosen.last_epoch}"
        text = f"a replica of broker {self.name}: {self.chosen.path}, {role}, is read"
        alone = []
        if replica.log_start < self.chosen.log_start:
            alone.append(f"before physical offset {self.chosen.log_start}")
        agreed = _consistent_end(self.chosen, replica)
        if agreed is not None and replica.log_end > agreed:
            alone.append(f"from physical offset {agreed} on")
        return f"{text}; what only the replica has is not, {' and '.join(alone)}" if alone else text


def brokers_of(sources: Sequence[StoreParts]) -> list[Broker]:
    """Return the brokers of some stores, in the order in which their names come first."""
    groups: dict[str, list[Member]] = {}
    for source in sources:
        groups.setdefault(source.view_broker_name, []).append(Member(source))
    brokers = []
    for name, members in groups.items():
        if len(members) == 1:
            brokers.append(Broker(name, members[0]))
            continue
        newest = max(member.last_epoch for member in members)
        candidates = [member for member in members if member.last_epoch == newest]
        if newest < 0:
            masters = [member for member in members if member.identity.broker_id == MASTER_ID]
            candidates = masters or candidates
        chosen = max(candidates, key=lambda member: (member.log_end, -member.log_start))
        replicas = tuple(member for member in members if member is not chosen)
        faults = (_fault(name, chosen, replica) for replica in replicas)
        found = tuple(fault for fault in faults if fault)
        brokers.append(Broker(name, chosen, replicas, found))
    return brokers


def stores_that_are_read(sources: Sequence[StoreParts]) -> list[StoreParts]:
    """Return of each broker the store that is read, and log why its replicas are not.

    Raises:
        OptionError: two stores have the same broker name and are not replicas of each other.
        UnsupportedFeatureError: a store is of a kind that cannot be compared with another one.
    """
    counts = Counter(source.view_broker_name for source in sources)
    for source in sources:
        if counts[source.view_broker_name] > 1:
            source.require("reading one of several stores of a broker")
    brokers = brokers_of(sources)
    for broker in brokers:
        broker.require_valid()
        for replica in broker.replicas:
            logger.warning("%s is not read: it is %s", replica.path, broker.note(replica))
    return [broker.chosen.source for broker in brokers]


def _fault(name: str, chosen: Member, other: Member) -> str | None:
    """Return the proof that two stores are not replicas of each other, None without one."""
    both = f"{chosen.path} and {other.path} are both of broker {name}"
    clusters = [chosen.identity.cluster, other.identity.cluster]
    if None not in clusters and clusters[0] != clusters[1]:
        return f"{both}, but of the clusters {clusters[0]} and {clusters[1]}"
    end = _consistent_end(chosen, other)
    if end is None:
        return f"{both}, but have no epoch in common"
    start = max(chosen.log_start, other.log_start)
    if start >= end:
        is_empty = other.log_start == other.log_end or chosen.log_start == chosen.log_end
        if is_empty and chosen.is_named and other.is_named:
            return None
        return f"{both}, but their logs have no part in common"
    reason = _difference(chosen, other, start, end)
    return f"{both}, but {reason}" if reason else None


def _consistent_end(chosen: Member, other: Member) -> int | None:
    """Return the physical offset up to which two logs have to agree, None if epochs say nowhere."""
    if not chosen.epochs or not other.epochs:
        return min(chosen.log_end, other.log_end)
    starts = {epoch.number: epoch.start_offset for epoch in other.epochs}
    for epoch in reversed(chosen.epochs):
        if starts.get(epoch.number) == epoch.start_offset:
            return min(chosen.epoch_end(epoch.number), other.epoch_end(epoch.number))
    return None


def _difference(chosen: Member, other: Member, start: int, end: int) -> str | None:
    """Return the proof that two logs differ between two physical offsets, None without one.

    The last record of the shorter one shows whether they have parted, because nothing is ever
    inserted into a log. Some others, spread over the common part, show whether they are the same
    log at all.
    """
    shorter, longer = sorted((chosen, other), key=attrgetter("log_end"))
    try:
        headers = chosen.source.sampler.log_headers()
    except (RmqStoreError, OSError):  # its queues cannot be read
        headers = [segment.start for segment in chosen.source.log.segments]
    inside = [head for head in headers if start <= head < end]
    spread = np.linspace(0, len(inside) - 1, min(_COMPARED, len(inside))).astype(np.int64)
    pairs = []
    for number in spread.tolist():
        segment = chosen.source.log.find(inside[number])
        if segment is not None:
            physical_offset = inside[number] + chosen.source.log.framing(segment).head_bytes
            pairs.append((chosen, other, physical_offset))
    last = last_record_before(shorter.source.log, end)
    if last is not None and last >= start:
        pairs.append((shorter, longer, last))
    n_compared = 0
    for first, second, physical_offset in pairs:
        log = first.source.log
        try:
            if not begins_record(log, physical_offset):
                continue
            record = log.record(log.locate(physical_offset))
        except (RmqStoreError, OSError):
            continue
        n_compared += 1
        log = second.source.log
        # A log that lacks the file that would have the record does not differ.
        if log.find(physical_offset) is not None:
            stored = log.read(*log.locate(physical_offset), len(record))
            if not np.array_equal(stored, record):
                return f"their logs differ at physical offset {physical_offset}"
    return None if n_compared else "no record of their logs could be compared"


def store_rows(sources: Sequence[StoreParts], _spec: ViewSpec) -> Iterator[Row]:
    """Yield a row for each store, by broker; of each broker the store that is read comes first."""
    for broker in brokers_of(sources):
        for member in broker.members:
            identity = member.identity
            reasons = list(broker.faults)
            is_chosen = member is broker.chosen
            if not is_chosen and not reasons:
                reasons.append(broker.note(member))
            log_end = None
            try:
                log_end = member.log_end
            except (RmqStoreError, OSError) as err:
                reasons.append(str(err))
            yield {
                "brokerName": broker.name,
                "path": member.path,
                "clusterName": identity.cluster,
                "brokerId": identity.broker_id,
                "brokerAddr": identity.address,
                "minOffset": member.log_start,
                "maxOffset": log_end,
                "epoch": member.last_epoch if member.epochs else None,
                "isRead": is_chosen and not broker.faults,
                "reason": "; ".join(reasons) or None,
            }
