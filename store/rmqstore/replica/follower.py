"""Follows a broker: opens the copy, and connects again and again until it is stopped.

Source: DefaultHAClient.java#run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from rmqstore.errors import (
    BrokerUnreachableError,
    RmqStoreError,
)
from rmqstore.remoting.client import Endpoint
from rmqstore.replica.agreement import (
    Extent,
    begin_at,
    compared_from,
    consistent_point,
    has_gap,
    larger,
    request_at,
    require_known_begin,
    served_bounds,
)
from rmqstore.replica.background import GaveUpError, Metadata, Question
from rmqstore.replica.broker import Source
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.copy_store import CopyStore
from rmqstore.replica.ha import (
    Connection,
    ConnectionEndedError,
    ControllerStream,
    Greeting,
    HaStream,
    shake_hands,
)
from rmqstore.replica.log_copy import LogCopy
from rmqstore.replica.log_files import boundary_before, boundary_from
from rmqstore.replica.progress import FollowProgress, progress_of
from rmqstore.replica.retention import OldFiles
from rmqstore.replica.session import Ended, Session
from rmqstore.replica.settings import FollowSettings, Timing, informant_of
from rmqstore.replica.state import copy_paths, read_state, require_same_source
from rmqstore.storage.files.disk import Disk, named_os_errors
from rmqstore.storage.files.local import LOCAL

logger = logging.getLogger(__name__)

FollowCallback = Callable[[FollowProgress], None]
_PROGRESS_SECONDS: Final = 1.0
_STATE_SECONDS: Final = 10.0
_MOST_REASONS: Final = 100


def ignore_follow_progress(progress: FollowProgress) -> None:
    """Do nothing; the default progress callback."""


class Follower:
    """Follows one broker.

    Args:
        endpoint: its listen port.
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
        self._root = LOCAL.full_path(target)
        self._make_disk = make_disk
        state = read_state(copy_paths(self._root))
        known_size = None if state is None else state.file_size
        self._informant = informant_of(endpoint, settings, known_size)
        self._store = CopyStore(self._root, make_disk)
        self._metadata = Metadata(self._informant, settings)
        self._source: Source | None = None
        self._stream: HaStream | None = None
        self._is_confirmed = False  # whether the logs have agreed since the last connection began
        self._is_connected = self._is_warned = False
        self._old_files = OldFiles(settings.retention, settings.keep_for)
        self._overlap = self._compared_bytes = settings.overlap
        self._goal = settings.until
        self._why = ""
        self._told: set[str] = set()
        self._progress_at = self._state_at = time.monotonic()
        self._retained_at = float("-inf")

    def run(self) -> FollowProgress:
        """Follow until the end that was asked for; raises as :func:`follow` does."""
        with named_os_errors(self._root, self._consequence):
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

    def _consequence(self) -> str:
        """Say what became of the copy where the disk failed, and how much is missing."""
        now = self._now()
        return (
            f"what is whole was kept, up to {now.end}, and the same call continues the copy; "
            f"the log of the broker has {now.bytes_behind} bytes more"
        )

    def _close(self) -> None:
        self._metadata.stop()
        self._store.close(self._old_files if self._is_confirmed else None)

    def _follow(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                ended = self._connect()
                if ended is Ended.STOPPED or self._stop.is_set():
                    return
                reason = self._why if ended is Ended.CLOSED else None
            except BrokerUnreachableError as err:
                if not self._settings.reconnect:
                    raise
                reason = str(err)
            except GaveUpError:
                return
            if reason is not None:
                if not self._settings.reconnect:
                    raise BrokerUnreachableError(str(self._endpoint.address), reason)
                # Each reason is logged once until there has been a connection.
                if reason not in self._told:
                    logger.warning("%s; connecting again and again", reason)
                if len(self._told) >= _MOST_REASONS:
                    self._told.clear()
                self._told.add(reason)
            # The pause is counted from the request on: a long connection needs none at its end.
            pause = self._settings.timing.pause - (time.monotonic() - began)
            self._stop.wait(max(pause, self._settings.timing.pause / 5))
            self.tick()

    def _connect(self) -> Ended:
        facts = self._metadata.ask_unless(self._stop.is_set)
        self._metadata.use_newest()
        source = self._informant.source(facts.settings)
        store = self._store
        if store.state is not None:
            require_same_source(self._root, store.state, source)
        if not store.is_open:
            self._open(facts.bounds, source)
        bounds = facts.bounds
        if not self._informant.tells_all:  # the log may be longer than is known
            bounds = bounds._replace(high=max(bounds.high, store.log.end))
        elif self._goal is None and self._settings.once:
            self._goal = bounds.high
        store.log.forget_begun()
        timing = self._settings.timing.adapted(source.heartbeat, source.housekeeping)
        self._source, self._is_confirmed = source, False
        try:
            if source.mode == "default":
                session = self._session(bounds, source, timing, None)
                if session is None:
                    return Ended.RESTARTED
                with self._connection(source, timing) as connection:
                    return self._run(session, connection)
            with self._connection(source, timing) as connection:
                assert store.state is not None
                learner_id, gives_up = store.state.learner_id, self._stop.is_set
                greeting = shake_hands(connection, learner_id, timing.first_header, gives_up)
                # A master that is demoted says so, and then closes its connections: this one is
                # among them.
                Question(self._informant.require_master).result(gives_up)
                session = self._session(bounds, source, timing, greeting)
                return Ended.RESTARTED if session is None else self._run(session, connection)
        except ConnectionEndedError as err:
            self._why = self._of_port(str(err))
            return Ended.CLOSED

    def _of_port(self, reason: str) -> str:
        assert self._source is not None
        return f"{self._source.ha_address}, the HA port: {reason}"

    def _connection(self, source: Source, timing: Timing) -> closing[Connection]:
        self._store.count_connection()
        connecting = partial(Connection, source.ha_address, timing.first_header)
        connection = Question(connecting).result(self._stop.is_set)
        if connection.is_public and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s is an address of the public internet, and an HA port has neither "
                "login nor encryption: use a tunnel",
                source.ha_address,
            )
        return closing(connection)

    def _session(
        self, bounds: LogBounds, source: Source, timing: Timing, greeting: Greeting | None
    ) -> Session | None:
        """Decide from where on the logs are compared; None if a new copy has to begin before.

        Raises:
            StoreStateError: the broker has nothing that the copy could continue with.
        """
        if greeting is not None:
            bounds = served_bounds(bounds, greeting.epochs, greeting.end, source.file_size)
        store, log = self._store, self._store.log
        assert store.state is not None
        if log.sure_end == store.state.begin and not bounds.reach(store.state.begin):
            start = self._settings.start
            begin = begin_at(start, bounds, source.file_size, is_new=False)
            logger.warning(
                "%s: the copy has no record yet, and begins at %d now", self._root, begin
            )
            store.begin_again(begin)
        extent, sure = Extent(store.state.begin, log.end), Extent(store.state.begin, log.sure_end)
        if has_gap(self._root, sure, bounds, begins_again=self._settings.on_gap == "restart"):
            self._store = self._set_aside(extent, bounds)
            self._open(bounds, source, is_new=False)
            return None
        common = log.end
        is_related = True
        if greeting is not None and (own := store.epochs.within(*extent)):
            point = consistent_point(own, log.end, greeting.epochs, greeting.end)
            is_related = point is not None
            common = log.end if point is None else point
        self._compared_bytes = max(self._overlap, self._settings.overlap + source.least_overlap)
        known = sure._replace(end=min(common, sure.end))
        wanted = compared_from(known, bounds, self._compared_bytes)
        compared = boundary_from(log.log, wanted, log.end)
        if compared > bounds.high:  # inside of a long record, the log of the broker ends
            compared = boundary_before(log.log, extent.begin, wanted)
        compared = max(compared, extent.begin)
        if greeting is None:
            self._stream = HaStream(request_at(compared, bounds, source.file_size))
        else:
            self._stream = ControllerStream(compared, greeting.epochs)
        return Session(
            log,
            self,
            replace(self._settings, timing=timing),
            self._stop,
            stream=self._stream,
            compared=compared,
            extent=extent,
            bounds=bounds,
            goal=self._goal,
            may_compare_more=is_related,
            first_record=self._first_record(log, bounds),
        )

    def _first_record(self, log: LogCopy, bounds: LogBounds) -> bytes:
        """Return the record that a copy without one has to begin with, empty if it is not known."""
        if log.end != log.sure_end or not bounds.low <= log.end < bounds.high:
            return b""
        assert self._store.state is not None
        if log.end != self._store.state.begin:
            return b""
        question = partial(self._informant.record_at, log.end)
        return Question(question).result(self._stop.is_set)

    def _run(self, session: Session, connection: Connection) -> Ended:
        store = self._store
        try:
            ended = session.run(connection)
        finally:
            self._is_connected = False
            if session.has_agreed:  # the last records may be of an epoch that is not noted yet
                self._learn_epochs()
        self._why = self._of_port(session.why)
        if session.has_begun:
            self._told.clear()
        if ended is Ended.COMPARE_MORE:
            self._overlap = larger(self._compared_bytes)
            logger.info(
                "the logs differ before the last %d bytes; more is compared", self._compared_bytes
            )
        else:
            self._overlap = self._settings.overlap
        if store.log.end > store.log.durable_end:
            store.sync()
        return ended

    def _open(self, bounds: LogBounds, source: Source, *, is_new: bool = True) -> None:
        state = self._store.state
        if state is None:
            if is_new and not self._informant.tells_all:
                require_known_begin(self._settings.start, bounds)
            begin = begin_at(self._settings.start, bounds, source.file_size, is_new=is_new)
        else:
            begin = state.begin
        self._store.resume(
            source, str(self._endpoint.address), begin, self._metadata,
            builds_queues=self._settings.build_queues,
        )  # fmt: skip
        self._metadata.start()

    def _set_aside(self, extent: Extent, bounds: LogBounds) -> CopyStore:
        """Rename the folder of the copy, and return a new copy in its place."""
        aside = self._store.set_aside()
        logger.warning(
            "%s ends at %d, and the broker has nothing to serve before %d: "
            "it is now %s, and a new copy begins",
            self._root, extent.end, bounds.low, aside,
        )  # fmt: skip
        return CopyStore(self._root, self._make_disk)

    def sync(self) -> None:
        """Bring the copy and its state to the disk."""
        self._store.sync()

    def begin_sync(self) -> bool:
        """Begin to do so in a thread; return False if the last time is under way."""
        return self._store.begin_sync()

    @property
    def known_bounds(self) -> LogBounds:
        """Where the log of the broker began and ended when it was last asked."""
        return self._metadata.bounds

    @property
    def saved_end(self) -> int:
        """Physical offset up to which the state of the copy, on the disk, covers its log."""
        return self._store.saved_end

    def cut(self, end: int, reason: str) -> None:
        """Cut the copy at the end of a record."""
        self._store.cut(end, reason)

    def agree(self, at: float) -> None:
        """Let the tables be shown that the broker reported before a monotonic time."""
        self._metadata.agree(at)
        self._is_connected = True
        self._learn_epochs()
        if not self._is_confirmed and self._source is not None:
            self._is_confirmed = True
            self._store.confirm_source(str(self._endpoint.address), self._source)

    def _learn_epochs(self) -> None:
        if isinstance(self._stream, ControllerStream):
            self._store.epochs.learn(self._stream.epochs, self._stream.confirm_offset)

    def ask_bounds(self, position: int) -> LogBounds:
        """Return where the log of the broker now begins and ends."""
        return self._metadata.bounds_unless(position, self._stop.is_set)

    def tick(self) -> None:
        """Report the progress, and write the state now and then; called again and again."""
        now = time.monotonic()
        if now - self._progress_at < _PROGRESS_SECONDS:
            return
        self._progress_at = now
        self._store.check()
        self._progress(self._now())
        if not self._store.is_open:
            return
        if now - self._state_at >= _STATE_SECONDS:
            self._state_at = now
            self._store.write_state()
        # Old files are deleted now and then, but none while the logs are being compared.
        may_delete = self._is_confirmed and not self._settings.retention.is_forever
        if may_delete and now - self._retained_at >= self._settings.timing.retention:
            self._retained_at = now
            self._store.delete_old(self._old_files)

    def _now(self) -> FollowProgress:
        return progress_of(self._store, self._metadata, is_connected=self._is_connected)
