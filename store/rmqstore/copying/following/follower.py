"""Follows a broker: opens the copy, and connects again and again until it is stopped.

Source: DefaultHAClient.java#run.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rmqstore.copying.following.agreement import Extent, compared_from, larger
from rmqstore.copying.following.background import Metadata
from rmqstore.copying.following.copy_store import CopyStore, copy_paths
from rmqstore.copying.following.remoting.broker import Bounds
from rmqstore.copying.following.remoting.client import Address, Endpoint
from rmqstore.copying.following.remoting.credentials import Credentials
from rmqstore.copying.following.session import Ended, Session
from rmqstore.copying.following.settings import Acknowledge, FollowProgress, FollowSettings, Start
from rmqstore.copying.following.source import Facts, Source, ask_bounds, source_of
from rmqstore.copying.following.state import FollowState, read_state
from rmqstore.errors import (
    BrokerUnreachableError,
    OptionError,
    RmqStoreError,
    StoreStateError,
    Text,
    listed,
)
from rmqstore.storage.files.disk import Disk, named_os_errors
from rmqstore.storage.files.local import LOCAL

logger = logging.getLogger(__name__)

FollowCallback = Callable[[FollowProgress], None]
_PROGRESS_SECONDS: Final = 1.0
_STATE_SECONDS: Final = 10.0
_MOST_REASONS: Final = 100


def ignore_follow_progress(progress: FollowProgress) -> None:
    """Do nothing; the default progress callback."""


def follow(
    source: str,
    target: str | os.PathLike[str],
    *,
    once: bool = False,
    until: int | None = None,
    start: Start = "earliest",
    acknowledge: Acknowledge = "never",
    allow_sync_master: bool = False,
    reconnect: bool = True,
    max_rate: int | None = None,
    ha_address: str | None = None,
    tables_seconds: float = 60.0,
    access_key: str | None = None,
    secret_key: str | None = None,
    security_token: str | None = None,
    tls: ssl.SSLContext | None = None,
    stop: threading.Event | None = None,
    progress: FollowCallback = ignore_follow_progress,
) -> FollowProgress:
    """Keep an exact copy of a live broker's log, over the port that serves its replicas.

    The copy is a store. Everything of this package reads it while it grows. A copy that was
    interrupted is continued by the same call: it is compared with the broker's log first, and cut
    where the broker does not have it any more; what is cut is kept in ``.rmqstore/cut``.

    Args:
        source: the broker's ordinary port, ``host:10911``. A slave can be followed too.
        target: the folder of the copy.
        once: return as soon as the copy is as long as the log was at the start of the call.
        until: return as soon as the copy reaches this physical offset.
        start: where a new copy begins: with the broker's first file, or with its last one.
        acknowledge: ``synced`` reports what is on the disk. The broker then takes the follower for
            a replica, for which producers of a SYNC_MASTER wait.
        allow_sync_master: follow a SYNC_MASTER of RocketMQ 4, whose producers may have to wait.
        reconnect: connect again if the connection ends, instead of raising an error.
        max_rate: bytes a second at most.
        ha_address: where the broker serves replicas, if its own port does not lead there.
        tables_seconds: how often topics, groups and offsets are fetched; 0 for once.
        access_key: of a user of the broker; no rights are needed.
        secret_key: the secret of the access key.
        security_token: a token, where one is in use.
        tls: settings of TLS for the ordinary port. The port for replicas has none.
        stop: set it to end the call, with a copy that is a closed store.
        progress: called about once a second.

    Returns:
        How far the copy is.

    Raises:
        BrokerUnreachableError: the connection ended, and ``reconnect`` is false.
        BrokerRefusedError: the broker refused a request, such as one with a wrong secret.
        StoreStateError: the target is not a copy of this broker, the broker has already deleted
            what comes next, or following it would do harm.
        UnsupportedFeatureError: the broker replicates its log in another way.
        CorruptRecordError: the broker's log is not a chain of records.
    """
    credentials = None
    if access_key is not None and secret_key is not None:
        credentials = Credentials(access_key, secret_key, security_token)
    elif access_key is not None or secret_key is not None:
        raise OptionError(Text(listed("access_key", "secret_key"), ": give both"))
    settings = FollowSettings(
        once=once,
        until=until,
        start=start,
        acknowledge=acknowledge,
        allow_sync_master=allow_sync_master,
        reconnect=reconnect,
        max_rate=max_rate,
        ha_address=None if ha_address is None else Address.parse(ha_address),
        tables_seconds=tables_seconds,
    )
    endpoint = Endpoint(Address.parse(source), credentials, tls)
    follower = Follower(endpoint, Path(target), settings, stop or threading.Event(), progress)
    return follower.run()


def follow_status(target: str | os.PathLike[str]) -> tuple[FollowState, bool]:
    """Return what a follower noted of its copy last, and whether one is running.

    Raises:
        StoreStateError: the folder is not a copy that a follower made.
    """
    paths = copy_paths(LOCAL.full_path(Path(target)))
    state = read_state(paths)
    if state is None:
        raise StoreStateError(f"{target} is not a copy that a follower made")
    return state, LOCAL.is_locked(paths.lock)


class Follower:
    """Follows one broker.

    Args:
        endpoint: its ordinary port.
        target: the folder of the copy.
        settings: how it is followed.
        stop: set to end.
        progress: called about once a second.
        make_disk: returns a disk to make changes with.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        target: Path,
        settings: FollowSettings,
        stop: threading.Event,
        progress: FollowCallback = ignore_follow_progress,
        make_disk: Callable[[], Disk] = Disk,
    ) -> None:
        self._endpoint, self._settings, self._stop = endpoint, settings, stop
        self._progress = progress
        self._metadata = Metadata(endpoint, settings)
        self._root = LOCAL.full_path(target)
        self._store = CopyStore(self._root, make_disk)
        self._overlap = settings.overlap
        self._goal = settings.until
        self._why = ""
        self._told: set[str] = set()
        self._progress_at = self._state_at = time.monotonic()

    def run(self) -> FollowProgress:
        """Follow until the end that was asked for; raises as :func:`follow` does."""
        consequence = "what is whole was kept, and the same call goes on with the copy"
        with named_os_errors(self._root, consequence):
            try:
                self._follow()
            except (RmqStoreError, KeyboardInterrupt):
                self._close()
                raise
            except BaseException:
                self._metadata.stop()
                self._store.abandon()
                raise
            self._close()
        return self._now()

    def _close(self) -> None:
        self._metadata.stop()
        self._store.close()

    def _follow(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                ended = self._connect()
                if ended is Ended.STOPPED:
                    return
                reason = self._why if ended is Ended.CLOSED else None
            except BrokerUnreachableError as err:
                if not self._settings.reconnect:
                    raise
                reason = str(err)
            if reason is not None:
                if not self._settings.reconnect:
                    raise BrokerUnreachableError(str(self._endpoint.address), reason)
                self._warn(reason)
            # The pause is counted from the request on: a long connection needs none at its end.
            pause = self._settings.timing.pause - (time.monotonic() - began)
            self._stop.wait(max(pause, self._settings.timing.pause / 5))
            self.tick()

    def _warn(self, reason: str) -> None:
        """Tell why there is no connection, each reason once until there has been one."""
        if reason not in self._told:
            logger.warning("%s; connecting again and again", reason)
        if len(self._told) >= _MOST_REASONS:
            self._told.clear()
        self._told.add(reason)

    def _connect(self) -> Ended:
        facts = self._metadata.ask()
        self._metadata.use_newest()
        source = source_of(
            facts.settings,
            self._endpoint,
            self._settings.ha_address,
            allow_sync_master=self._settings.allow_sync_master,
        )
        store = self._store
        store.require_source(source)
        if not store.is_open:
            self._open(facts, source)
        if self._goal is None and self._settings.once:
            self._goal = facts.bounds.high
        log = store.log
        log.forget_begun()
        assert store.state is not None
        if log.end == store.state.begin and not self._is_within(log.end, facts.bounds):
            store.begin_again(self._begin_at(facts.bounds, source))
        extent = Extent(store.state.begin, log.end)
        self._require_no_gap(extent, facts.bounds)
        overlap = max(self._overlap, self._settings.overlap + source.least_overlap)
        wanted = compared_from(extent, facts.bounds, overlap)
        compared = log.boundary_from(wanted)
        if compared > facts.bounds.high:  # inside of a long record, the log of the broker ends
            compared = log.boundary_before(extent.begin, wanted)
        compared = max(compared, extent.begin)
        session = Session(
            log,
            self,
            self._settings,
            self._stop,
            compared=compared,
            extent=extent,
            bounds=facts.bounds,
            file_size=source.file_size,
            goal=self._goal,
        )
        store.count_connection()
        ended = session.run(source.ha_address)
        self._why = session.why
        if session.has_begun:
            self._told.clear()
        if ended is Ended.COMPARE_MORE:
            self._overlap = larger(overlap)
            logger.info("the logs differ before the last %d bytes; more is compared", overlap)
        else:
            self._overlap = self._settings.overlap
        if log.end > log.durable_end:
            store.sync()
        return ended

    def _open(self, facts: Facts, source: Source) -> None:
        begin = self._begin_at(facts.bounds, source)
        self._store.resume(source, str(self._endpoint.address), begin, self._metadata)
        self._metadata.start()

    def _begin_at(self, bounds: Bounds, source: Source) -> int:
        is_last = self._settings.start == "last-file"
        return bounds.high - bounds.high % source.file_size if is_last else bounds.low

    @staticmethod
    def _is_within(physical_offset: int, bounds: Bounds) -> bool:
        return bounds.low <= physical_offset <= bounds.high

    def _require_no_gap(self, extent: Extent, bounds: Bounds) -> None:
        """Require that the broker has something of the copy, with which it can be compared."""
        if extent.begin == extent.end:
            return
        if bounds.high < extent.begin:
            raise StoreStateError(
                f"{self._root} begins at {extent.begin}, and the log of the broker ends at "
                f"{bounds.high}: it has another log by now. Keep the copy, and follow the broker "
                "into a new folder"
            )
        if extent.end <= bounds.low:
            how = "without a gap" if extent.end < bounds.low else "without being compared"
            raise StoreStateError(
                f"{self._root} ends at {extent.end}, and the broker has deleted everything before "
                f"{bounds.low}: the copy cannot go on {how}. Keep it, and follow the broker into a "
                "new folder"
            )

    def sync(self) -> None:
        """Bring the copy and its state to the disk."""
        self._store.sync()

    def cut(self, end: int, reason: str) -> None:
        """Cut the copy at the end of a record."""
        self._store.cut(end, reason)

    def agree(self, at: float) -> None:
        """Let the tables be shown that the broker told before a monotonic time."""
        self._metadata.agree(at)

    def ask_bounds(self) -> Bounds:
        """Return where the log of the broker begins and ends by now."""
        return ask_bounds(self._endpoint)

    def tick(self) -> None:
        """Tell the progress, and write the state now and then; called again and again."""
        now = time.monotonic()
        if not self._store.is_open or now - self._progress_at < _PROGRESS_SECONDS:
            return
        self._progress_at = now
        self._store.check()
        self._progress(self._now())
        if now - self._state_at >= _STATE_SECONDS:
            self._state_at = now
            self._store.write_state()

    def _now(self) -> FollowProgress:
        state, store = self._store.state, self._store
        if state is None or not store.is_open:
            return FollowProgress(0, 0, 0, 0, 0.0, 0, 0, 0)
        end, high = store.log.durable_end, max(self._metadata.bounds.high, store.log.end)
        return FollowProgress(
            state.begin,
            end,
            high,
            high - end,
            store.seconds_behind(),
            store.built,
            state.n_connections,
            state.n_cuts,
        )
