"""The loop of a replica: it waits for events, asks what follows from them, and does it.

What follows is in :mod:`rmqstore.replica.dispatch`. The thread that reads the stream is the one
that reports: a follower that hangs is cut off by the broker, which must not keep files for it that
retention has to delete.

Source: DefaultHAClient.java, DefaultHAConnection.java.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore.errors import CorruptRecordError, MalformedBytesError
from rmqstore.remoting import Endpoint
from rmqstore.replica import events
from rmqstore.replica.appending import state_to_leave
from rmqstore.replica.broker import ListenPort
from rmqstore.replica.broker_requests import BrokerClient
from rmqstore.replica.copy_store import CopyStore
from rmqstore.replica.dispatch import decide
from rmqstore.replica.events import Action, Event, Happened, Question, happened
from rmqstore.replica.ha import (
    Chunk,
    Connection,
    ConnectionEndedError,
    ControllerStream,
    HaStream,
    shake_hands,
)
from rmqstore.replica.live_state import Phase, first_replica_state, progress_of, wait_of
from rmqstore.replica.retention import OldFiles
from rmqstore.replica.settings import FollowSettings
from rmqstore.replica.state import FollowProgress
from rmqstore.storage.files.disk import Disk, named_os_errors
from rmqstore.storage.files.local import LOCAL

logger = logging.getLogger(__name__)

FollowCallback = Callable[[FollowProgress], None]
_BUFFER_BYTES: Final = 1 << 20


def ignore_follow_progress(progress: FollowProgress) -> None:
    """Do nothing; the default progress callback."""


class _Made(NamedTuple):
    """A connection, the event that says so, and the stream once it is asked for."""

    happened: Happened
    connection: Connection
    stream: HaStream = HaStream(0)


class Mail:
    """Events of other threads, for the loop, which they wake up."""

    def __init__(self) -> None:
        self._found: deque[Happened | _Made | Event] = deque()
        self._guard = threading.Lock()
        self._is_closed = False
        self._reader, self._writer = socket.socketpair()
        self._reader.settimeout(0)
        self._writer.settimeout(0)

    def put(self, found: Happened | _Made | Event) -> None:
        """Leave an answer, a connection or another event; whoever is late leaves it to nobody."""
        with self._guard:
            if not self._is_closed:
                self._found.append(found)
                with suppress(OSError):  # it is awake
                    self._writer.send(b"\0")
            elif isinstance(found, _Made):
                found.connection.close()

    def wait(self, connection: Connection | None, seconds: float) -> bool:
        """Wait for events, or for bytes of a connection; return whether there are any of these."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        if connection is not None:
            poll.register(connection, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(seconds * 1000)]
        if self._reader.fileno() in ready:
            with suppress(OSError):
                while self._reader.recv(4096):
                    pass
        return connection is not None and connection.fileno() in ready

    def take(self) -> list[Happened | _Made | Event]:
        """Return all that was left, in its order."""
        return [self._found.popleft() for _ in range(len(self._found))]

    def close(self) -> None:
        """Wait for nothing any more."""
        with self._guard:
            self._is_closed = True
        for found in self.take():
            if isinstance(found, _Made):
                found.connection.close()
        self._reader.close()
        self._writer.close()


def answer_to(action: events.Ask, port: ListenPort) -> Happened:
    """Ask the broker; return its answer as an event."""
    asked, position, known = action
    question = asked.question
    event: Event
    try:
        if question in (Question.FACTS, Question.TABLES):
            facts = port.ask().kept_once(known)
            is_first = question is Question.FACTS
            event = events.Answered(facts, port.source(facts.settings) if is_first else None)
        else:
            with BrokerClient(port.endpoint) as broker:
                if question is Question.RECORD:
                    event = events.RecordReported(broker.record_at(position))
                else:
                    event = events.BoundsReported(broker.bounds(), position)
    except BaseException as err:  # noqa: BLE001 - whatever it is, somebody waits for an answer
        event = events.Unanswered(err)
    return happened(event, asked)


def connect(
    action: events.Connect, port: ListenPort, gives_up: Callable[[], bool]
) -> _Made | Happened:
    """Connect to the HA port, and shake hands with the master if that is asked for."""
    asked, source, seconds, learner_id = action
    connection: Connection | None = None
    try:
        connection = Connection(source.ha_address, seconds)
        handshake = None
        if learner_id is not None:
            handshake = shake_hands(connection, learner_id, seconds, gives_up)
            # A master that is demoted says so, and then closes its connections: this one is among
            # them.
            port.require_master()
        event = events.Connected(handshake, connection.is_public)
        return _Made(happened(event, asked), connection)
    except BaseException as err:  # noqa: BLE001 - whatever it is, somebody waits for a connection
        if connection is not None:
            connection.close()
        is_lost = isinstance(err, ConnectionEndedError)
        return happened(events.Lost(str(err)) if is_lost else events.Unanswered(err), asked)


class Follower:
    """Follows one broker.

    Args:
        endpoint: its listen port.
        target: the folder of the copy.
        settings: how it is followed.
        stop: set to end.
        progress: called about once a second.
        make_disk: returns a disk to make changes with.

    Attributes:
        state: all that is known; only the loop replaces it.
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
        self._stop = stop
        self._progress = progress
        root = LOCAL.full_path(target)
        self._port = ListenPort(
            endpoint, settings.ha_address, allow_sync_master=settings.allow_sync_master,
            acknowledges=settings.acknowledge != "never",
        )  # fmt: skip
        self._mail = Mail()
        old_files = OldFiles(settings.retention, settings.keep_for)
        self._make_store = partial(CopyStore, root, self._mail.put, make_disk, old_files)
        try:
            self._store = self._make_store()
        except BaseException:
            self._mail.close()
            raise
        self._made: _Made | None = None
        # What came and has not been decided about, each with its bytes; and those of the present.
        self._backlog: deque[tuple[Happened, list[Chunk]]] = deque()
        self._found: deque[Happened] = deque()  # all else that happened
        self._chunks: list[Chunk] = []
        rate = settings.max_rate
        portion = _BUFFER_BYTES if rate is None else int(rate * settings.timing.poll)
        self._buffer = memoryview(bytearray(max(min(_BUFFER_BYTES, portion), 1)))
        self.state = first_replica_state(
            settings,
            root,
            str(endpoint.address),
            self._store.saved,
            now=time.monotonic(),
            epoch_ms=int(time.time() * 1000),
        )

    def run(self) -> FollowProgress:
        """Follow until the end that was asked for; raises as :func:`follow` does."""
        with named_os_errors(self.state.root, self._consequence):
            try:
                error = self._follow()
            except BaseException:  # of the end itself, or an interrupt of it
                if self.state.phase is Phase.ENDED:
                    self._store.release()
                else:
                    self._store.abandon(self._leave)
                raise
            finally:
                self._disconnect()
                self._mail.close()
            if error is not None:
                raise error
        return self.progress()

    def progress(self) -> FollowProgress:
        """Return how far the copy is."""
        return progress_of(self.state)

    def _consequence(self) -> str:
        """Return a text about a copy whose disk failed, and how much it lacks."""
        now = self.progress()
        return (
            f"what is whole was kept, up to {now.end}, and the same call continues the copy; "
            f"the log of the broker has {now.bytes_behind} bytes more"
        )

    def _follow(self) -> BaseException | None:
        """Perform decided actions until the end; return its error."""
        found = happened(events.Started())
        todo = deque([found])
        error: BaseException | None = None
        while self.state.phase is not Phase.ENDED:
            try:
                found = todo.popleft() if todo else self._next()
                self._store.note(found.event)
                self.state, actions = decide(self.state, found)
                results = []
                for action in actions:
                    if isinstance(action, events.End):
                        error = action.error
                        if action.is_complete:
                            self._store.release()
                        else:
                            self._store.abandon(self._leave)
                    elif (event := self._perform(action)) is not None:
                        results.append(happened(event))
                todo.extendleft(reversed(results))
            except BaseException as err:
                if self.state.phase is Phase.ENDED or isinstance(found.event, events.Failed):
                    raise
                # What the threads have done is seen from the files. What is asked is asked again
                # if it is needed.
                failed = self._store.failure(err)
                self._take_mail()
                self._found.clear()
                self._backlog.clear()
                todo = deque([happened(failed)])
        return error

    def _next(self) -> Happened:
        """Return the next event: of what came already, or after a wait.

        Raises what ended a thread.
        """
        while True:
            if self._found:
                found = self._found.popleft()
                if isinstance(found.event, events.Failed):
                    raise found.event.error
                return found
            if self._backlog and self.state.takes_bytes:
                found, self._chunks = self._backlog.popleft()
                return found
            self._wait(wait_of(self.state))

    def _wait(self, wait: events.Wait) -> None:
        """Wait for events; received bytes are kept until they are decided about."""
        made = self._made if wait.reads else None
        connection = None if made is None else made.connection
        has_bytes = self._mail.wait(connection, wait.seconds)
        self._take_mail()
        if self._stop.is_set() and not self.state.work.is_stopping:
            # A thread that saw it too may have given up, which is no loss of the broker.
            self._found.appendleft(happened(events.StopAsked()))
        count = 0
        if has_bytes and made is not None:
            try:
                count = made.connection.receive(self._buffer, 0.0)
                self._backlog += [
                    (happened(event), chunks)
                    for event, chunks in self._parsed(made.stream, self._buffer[:count])
                ]
            except ConnectionEndedError as err:
                self._backlog.append((happened(events.Lost(str(err))), []))
        if wait.reads:
            ticked = events.Ticked(count < len(self._buffer), count)
            self._backlog.append((happened(ticked), []))
        else:
            self._found.append(happened(events.Ticked(self.state.link.is_drained)))

    def _take_mail(self) -> None:
        """Take the results of other threads, and the awaited connection."""
        is_awaited = self.state.phase is Phase.CONNECTING
        for mail in self._mail.take():
            if not isinstance(mail, _Made):
                self._found.append(mail if isinstance(mail, Happened) else happened(mail))
            elif is_awaited and mail.happened.asked in self.state.link.asking:
                self._disconnect()
                self._made = mail
                self._found.append(mail.happened)
            else:
                mail.connection.close()

    @staticmethod
    def _parsed(stream: HaStream, data: memoryview) -> list[tuple[Event, list[Chunk]]]:
        """Return what bytes of the stream say: parts of the log, and heartbeats."""
        found: list[tuple[Event, list[Chunk]]] = []
        before = events.EpochsReported(tuple(stream.epochs), stream.confirm_offset)
        try:
            chunks = stream.feed(data)
        except MalformedBytesError as err:
            return [(events.Lost(err.reason), [])]
        known = events.EpochsReported(tuple(stream.epochs), stream.confirm_offset)
        if known != before:
            found.append((known, []))
        for has_data, group in groupby(chunks, key=lambda chunk: len(chunk.data) > 0):
            run = [*group]
            start = run[0].physical_offset
            if has_data:
                stop = run[-1].physical_offset + len(run[-1].data)
                found.append((events.Received(start, stop), run))
            else:  # heartbeats that follow one another say the same
                found.append((events.HeartbeatCame(start), []))
        if data and not found:  # a part of a header
            found.append((events.Received(stream.position, stream.position), []))
        return found

    def _disconnect(self) -> None:
        self._backlog.clear()
        if self._made is not None:
            self._made.connection.close()
        self._made = None

    def _perform(self, action: Action) -> Event | None:
        """Perform an action; return the event if there is one at once."""
        match action:
            case events.Buffer() | events.Write():
                return self._write(action)
            case events.Compare():
                return self._compare(action)
            case events.Report(offset):
                return self._report(offset)
            case events.Request():
                return self._request(action)
            case events.Ask() | events.Connect():
                self._ask(action)
            case events.Disconnect():
                self._disconnect()
            case events.ReportProgress():
                self._progress(self.progress())
            case events.Log(text, is_warning):
                logger.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
            case events.MoveAside(end):
                path = self._store.set_aside(end)
                self._store = self._make_store()
                return events.SetAside(path)
            case _:  # it changes the copy only
                return self._store.perform(action)
        return None

    def _ask(self, action: events.Ask | events.Connect) -> None:
        """Ask the broker, or connect to it, in a thread that a stop does not wait for."""

        def ask() -> None:
            if isinstance(action, events.Ask):
                self._mail.put(answer_to(action, self._port))
            else:
                self._mail.put(connect(action, self._port, self._stop.is_set))

        threading.Thread(target=ask, name="follow-question", daemon=True).start()

    def _leave(self, end: int) -> events.WriteState | None:
        """Return the state file for a log that ends at a physical offset."""
        self.state, last_write = state_to_leave(self.state, end)
        return last_write

    def _request(self, action: events.Request) -> events.Lost | None:
        position, handshake, has_zero = action
        stream = HaStream(position)
        if handshake is not None:
            stream = ControllerStream(position, handshake.epochs)
        assert self._made is not None
        self._made = self._made._replace(stream=stream)
        if has_zero:
            self._store.log.buffer(b"\0")
        return self._report(position)

    def _report(self, offset: int) -> events.Lost | None:
        assert self._made is not None
        try:
            self._made.connection.send(self._made.stream.report(offset))
        except ConnectionEndedError as err:
            return events.Lost(str(err))
        return None

    def _write(self, action: events.Buffer | events.Write) -> events.Written | None:
        """Buffer received bytes, or write the buffered ones; return the event of that."""
        log = self._store.log
        end = log.end
        error = None
        began = time.monotonic()
        try:
            if isinstance(action, events.Write):
                log.write_buffer()
            else:
                for _, part in self._parts_of(*action):
                    log.buffer(part)
        except CorruptRecordError as err:
            error = err
        if isinstance(action, events.Buffer) and log.end == end and error is None:
            return None
        return events.Written(log.end, log.last_store_timestamp, error, time.monotonic() - began)

    def _parts_of(self, start: int, stop: int) -> Iterator[tuple[int, memoryview]]:
        """Yield what came between two physical offsets, each part with its own."""
        for origin, data in self._chunks:
            part = data[max(start - origin, 0) : max(stop - origin, 0)]
            if part:
                yield max(start, origin), part

    def _compare(self, action: events.Compare) -> events.Agreed | events.Differed:
        """Compare bytes with those of the copy, or with a record that the listen port returned."""
        start, stop, compared_from, expected = action
        began = time.monotonic()
        for at, part in self._parts_of(start, stop):
            if expected is not None:
                if part != expected[at - start : at - start + len(part)]:
                    return events.Differed(at, at, "")
            elif (first := self._store.log.first_difference(at, part)) is not None:
                reason = "the broker has other bytes here"
                return self._store.differed(first, compared_from, reason)
        return events.Agreed(start, stop, time.monotonic() - began)
