"""One connection to a broker's HA port: it compares the logs, then appends to the copy.

The thread that reads the stream is the one that reports: a follower that hangs is cut off by the
broker, which must not keep files for it that retention has to delete.

Source: DefaultHAClient.java, DefaultHAConnection.java.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from enum import Enum
from typing import Final, Protocol

from rmqstore.errors import (
    BrokerUnreachableError,
    CorruptRecordError,
    MalformedBytesError,
    StoreStateError,
)
from rmqstore.replica.agreement import Extent, FirstRecord, Verdict, judge
from rmqstore.replica.broker_requests import LogBounds
from rmqstore.replica.ha import NEVER, Connection, ConnectionEndedError, HaStream, Piece, Rate
from rmqstore.replica.log_copy import BATCH_BYTES, LogCopy
from rmqstore.replica.log_files import boundary_before
from rmqstore.replica.settings import FollowSettings

_BUFFER_BYTES: Final = 1 << 20
_BOUNDS_SECONDS: Final = 1.0  # between two questions where the log of the broker ends
# Syncs take at most about a fifth of the time while there is little to copy.
_SYNC_SHARE: Final = 4.0
_SYNC_SECONDS: Final = 0.05
_LINGER_SECONDS: Final = 0.005  # that bytes wait for others, to be written with them


class Ended(Enum):
    """Why a session ended."""

    STOPPED = "it was asked to stop, or the copy is as far as was asked for"
    CLOSED = "the connection ended"
    RESTARTED = "the copy begins again"
    COMPARE_MORE = "the logs differ before the part that was compared"


class Owner(Protocol):
    """Who keeps the state of the copy."""

    def sync(self) -> None:
        """Bring the copy and its state to the disk."""

    def begin_sync(self) -> bool:
        """Begin to do so in a thread; return False if the last time is under way."""

    @property
    def known_bounds(self) -> LogBounds:
        """Where the log of the broker began and ended when it was last asked."""

    @property
    def saved_end(self) -> int:
        """Physical offset up to which the state of the copy, on the disk, covers its log."""

    def cut(self, end: int, reason: str) -> None:
        """Cut the copy at the end of a record."""

    def agree(self, at: float) -> None:
        """Take note that the log of the broker was the copy's at a monotonic time."""

    def ask_bounds(self, position: int) -> LogBounds:
        """Return where the log now begins and ends, of a broker that is at a position."""

    def tick(self) -> None:
        """Do what is done now and then."""


class Session:
    """One connection, from the request until it ends.

    Args:
        copy: the log of the copy.
        owner: who keeps its state.
        settings: how the broker is followed.
        stop: set to end the session.
        stream: what was not asked for yet.
        compared: physical offset from which the logs are compared; a record of the copy begins
            there, or the copy does.
        extent: what the copy holds.
        bounds: where the log of the broker begins and ends.
        goal: physical offset at which the session ends, None to continue.
        may_compare_more: whether the logs may have a common part before the one that is compared.
        first_record: what a copy without a record has to begin with, as the broker's listen port
            returns it; empty if that is not known.

    Attributes:
        why: what ended the connection, for people.
        has_begun: whether the broker has answered in this protocol.
    """

    def __init__(
        self,
        copy: LogCopy,
        owner: Owner,
        settings: FollowSettings,
        stop: threading.Event,
        *,
        stream: HaStream,
        compared: int,
        extent: Extent,
        bounds: LogBounds,
        goal: int | None,
        may_compare_more: bool = True,
        first_record: bytes = b"",
    ) -> None:
        self._copy, self._owner, self._settings, self._stop = copy, owner, settings, stop
        self._compared, self._extent, self._low = compared, extent, bounds.low
        self._goal, self._may_compare_more = goal, may_compare_more
        self._stream, self._request = stream, stream.position
        self._is_comparing = compared < extent.end
        self._first_record = FirstRecord(compared, first_record)
        self._agreed_from = copy.record_end(compared) if self._is_comparing else None
        self._quiet = 0.0 if settings.ha_mode is None else settings.timing.quiet
        self._is_idle = False  # the broker said that it has no more
        self._held_at = float("-inf")  # when the first of the bytes came that are not written
        self._bounds_at = float("-inf")
        self._data_at = time.monotonic()  # when bytes of the log came last
        self._synced_at = time.monotonic()
        self._sync_seconds = 0.0
        self.why = "the connection ended"
        self.has_begun = False
        if self._request > compared and not self._is_comparing:
            copy.append(b"\0")  # byte 0, which cannot be asked for

    def run(self, connection: Connection) -> Ended:
        """Ask for the log, and follow until something ends it.

        Raises:
            StoreStateError: the logs have nothing in common.
            CorruptRecordError: the broker's log is not a chain of records.
            OSError: the copy cannot be written.
        """
        try:
            if self.has_agreed:  # the copy is empty
                self._owner.agree(time.monotonic())
            connection.send(self._stream.report(self._request))
            self._data_at = time.monotonic()  # no heartbeat before counts as the end of the log
            return self._follow(connection)
        except ConnectionEndedError as err:
            self._copy.write_held()
            self.why = str(err)
            return Ended.CLOSED
        except CorruptRecordError:
            if not self._begins_elsewhere():
                raise
            self.why = f"the log of the broker does not begin at {self._extent.begin}"
            return Ended.CLOSED
        finally:
            self.has_begun = self._stream.has_begun

    def _begins_elsewhere(self) -> bool:
        """Return whether the first bytes of a copy are of another place than was asked for.

        The log of a new slave may begin anywhere; for 0 it sends its first file, once it has one.
        Source: CommitLog.java#getData, MappedFileQueue.java#findMappedFileByOffset.
        """
        if self._copy.end > self._extent.begin:
            return False
        try:
            return self._owner.ask_bounds(self._copy.end).low > self._extent.begin
        except BrokerUnreachableError:
            return False

    @property
    def has_agreed(self) -> bool:
        """Whether the log of the broker is known to be the copy's."""
        return not self._is_comparing and self._first_record.has_come

    def _follow(self, connection: Connection) -> Ended:
        timing = self._settings.timing
        buffer = memoryview(bytearray(self._portion()))
        received_at = time.monotonic()
        reported_at, reported = float("-inf"), NEVER
        rate = Rate(self._settings.max_rate, received_at)
        while not self._stop.is_set() and not self._has_arrived():
            waits_for_more = bool(self._copy.n_unwritten)
            count = connection.receive(buffer, self._linger if waits_for_more else timing.poll)
            now = time.monotonic()
            if count:
                received_at = now
                self._held_at = self._held_at if waits_for_more else now
                ended = self._take_all(self._pieces(buffer[:count]))
                if ended is not None:
                    return ended
                if self.has_agreed:
                    self._owner.agree(now)
            elif now - received_at > self._patience():
                raise ConnectionEndedError(f"nothing came for {self._patience():.0f} s")
            is_drained = count < len(buffer)
            self._write_if_due(is_drained=is_drained)
            self._sync_if_due(is_drained=is_drained)
            if time.monotonic() - now > timing.stall:
                raise ConnectionEndedError("the copy takes too long for what came")
            if self._stream.has_begun:
                # Producers wait 3 seconds for what is acknowledged.
                has_more = is_drained and self._reported() > reported
                if has_more or time.monotonic() - reported_at >= timing.report:
                    reported = self._reported()
                    connection.send(self._stream.report(reported))
                    reported_at = time.monotonic()
            self._owner.tick()
            pause = rate.pause(count, time.monotonic())
            if pause > 0:
                self._stop.wait(min(pause, timing.report / 4))
        self._copy.write_held()
        return Ended.STOPPED

    def _pieces(self, data: memoryview) -> list[Piece]:
        try:
            return self._stream.feed(data)
        except MalformedBytesError as err:
            raise ConnectionEndedError(err.reason) from err

    def _patience(self) -> float:
        """Return how many seconds may pass without a byte."""
        timing = self._settings.timing
        return timing.silence if self._stream.has_begun else timing.first_header

    def _portion(self) -> int:
        """Return how many bytes are read at once."""
        rate = self._settings.max_rate
        if rate is None:
            return _BUFFER_BYTES
        return max(min(_BUFFER_BYTES, int(rate * self._settings.timing.poll)), 1)

    def _reported(self) -> int:
        """Return what is reported: never more than the broker has and the state covers."""
        if self._settings.acknowledge == "never":
            return NEVER
        return min(self._stream.position, self._owner.saved_end)

    def _has_arrived(self) -> bool:
        if self._is_comparing:
            return False
        is_far_enough = self._goal is not None and self._copy.end >= self._goal
        return is_far_enough or (self._is_idle and self._settings.once)

    @property
    def _linger(self) -> float:
        """How long bytes wait for others; producers wait for what is acknowledged."""
        return _LINGER_SECONDS if self._settings.acknowledge == "never" else 0.0

    def _write_if_due(self, *, is_drained: bool) -> None:
        """Write what is held: together with what comes within a moment, and not in small parts."""
        copy, now = self._copy, time.monotonic()
        if not copy.n_unwritten:
            return
        is_complete = is_drained and now - self._held_at >= self._linger
        is_enough = self._goal is not None and copy.position >= self._goal
        is_late = now - self._held_at >= self._settings.sync_seconds
        if self._is_behind:  # each write costs some time of its own
            is_complete = False
        if is_complete or is_enough or is_late or copy.n_unwritten >= BATCH_BYTES:
            copy.write_held()

    @property
    def _is_behind(self) -> bool:
        """Whether there is so much to copy that nobody waits for a part of it."""
        return self._owner.known_bounds.high - self._copy.position > BATCH_BYTES

    def _sync_if_due(self, *, is_drained: bool) -> None:
        copy, settings = self._copy, self._settings
        if copy.end == copy.durable_end or self._is_comparing:
            return
        since = time.monotonic() - self._synced_at
        rest = max(_SYNC_SECONDS, _SYNC_SHARE * self._sync_seconds)
        unsynced = copy.position - copy.durable_end  # about; what is held is not written yet
        is_due = since >= settings.sync_seconds or unsynced >= settings.sync_bytes
        if self._is_behind:
            if is_due and self._owner.begin_sync():
                self._synced_at = time.monotonic()
            return
        if is_due or (is_drained and since >= rest) or self._has_arrived():
            began = time.monotonic()
            self._owner.sync()
            self._synced_at = time.monotonic()
            self._sync_seconds = self._synced_at - began

    def _take_all(self, pieces: list[Piece]) -> Ended | None:
        """Take the pieces of one read; those to append are held."""
        for piece in pieces:
            if not piece.is_heartbeat:
                self._data_at = time.monotonic()
            if piece.is_heartbeat:
                self._copy.write_held()
                ended = self._take_heartbeat(piece.physical_offset)
            elif self._is_comparing:
                ended = self._compare(piece)
            else:
                self._is_idle = False
                self._first_record.compare(piece.physical_offset, piece.data)
                self._copy.hold(piece.data)
                continue
            if ended is not None:
                return ended
        return None

    def _take_heartbeat(self, position: int) -> Ended | None:
        """Take a heartbeat. It comes at the end of the log, and wherever the broker is slow."""
        # A broker sends heartbeats for ever where it has deleted what would come next. Then no more
        # of the log can come on this connection.
        low, high = self._owner.known_bounds
        if position < low:
            raise ConnectionEndedError(
                f"the broker continues at {position}, and its log now begins at {low}"
            )
        seconds = time.monotonic() - self._data_at
        if position < high and seconds > self._patience():
            with suppress(BrokerUnreachableError):
                self._owner.ask_bounds(position)  # whether the log has it decides what follows
            raise ConnectionEndedError(
                f"the broker has its log up to {high}, and sent nothing after {position} for "
                f"{seconds:.0f} s"
            )
        if not self._is_comparing and not (self._settings.once and position == self._copy.end):
            return None
        now = time.monotonic()
        if now - self._bounds_at < _BOUNDS_SECONDS or now - self._data_at < self._quiet:
            return None
        self._bounds_at = now
        try:
            bounds = self._owner.ask_bounds(position)
        except BrokerUnreachableError as err:
            if not self._is_comparing:
                return None
            raise ConnectionEndedError(str(err)) from err
        if not bounds.low <= position <= bounds.high:  # the next connection begins with these
            raise ConnectionEndedError(
                f"the broker continues at {position}, and its log is now from {bounds.low} "
                f"to {bounds.high}"
            )
        self._low = max(self._low, bounds.low)
        if position < bounds.high:
            return None
        if self._is_comparing:
            return self._differ(position, "the broker's log ends here")
        self._is_idle = True
        return None

    def _compare(self, piece: Piece) -> Ended | None:
        """Compare bytes with those of the copy; append those that follow its end."""
        place, data = piece.physical_offset, piece.data
        n_compared = min(len(data), self._copy.end - place)
        first = self._copy.first_difference(place, data[:n_compared])
        if first is not None:
            ended = self._differ(first, "the broker has other bytes here")
            if ended is None:
                self._copy.append(data[first - place :])
            return ended
        if place + n_compared == self._copy.end:
            self._is_comparing = False
            self._copy.trust()
            self._copy.hold(data[n_compared:])
        return None

    def _differ(self, place: int, reason: str) -> Ended | None:
        """Decide what follows from a difference at a physical offset.

        If the copy is cut, its position is that offset afterwards.

        Raises:
            StoreStateError: nothing is known to be the same.
        """
        has_agreed = self._agreed_from is not None and place >= self._agreed_from
        verdict = judge(
            has_agreed=has_agreed, compared=self._compared, extent=self._extent, low=self._low
        )
        if verdict is Verdict.COMPARE_MORE and self._may_compare_more:
            return Ended.COMPARE_MORE
        if verdict is not Verdict.CUT:
            raise StoreStateError(
                f"the log of the broker and the copy differ at physical offset {place}, and no "
                f"record from {self._compared} on is the same: the broker now has another log. "
                "Nothing was changed; follow it into a new folder"
            )
        boundary = boundary_before(self._copy.log, self._compared, place)
        held = b"" if boundary == place else self._copy.read(boundary, place - boundary).tobytes()
        self._owner.cut(boundary, reason)
        self._is_comparing = False
        if held:
            self._copy.append(held)
        return None
