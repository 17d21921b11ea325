"""What is done beside the stream, each in a thread: queues and tables, and questions to the broker.

The thread that reads the stream writes the log and the state. It never waits for these.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from rmqstore.copying.following.queue_builder import QueueBuilder
from rmqstore.copying.following.remoting.broker import Bounds
from rmqstore.copying.following.remoting.client import Endpoint
from rmqstore.copying.following.settings import FollowSettings
from rmqstore.copying.following.source import Facts, ask, ask_bounds, batch_topics_of
from rmqstore.copying.following.tables import write_tables
from rmqstore.errors import BrokerRefusedError, BrokerUnreachableError
from rmqstore.format.layout import LMQ_PREFIX
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.paths import StorePaths

logger = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 1.0
# A flush of many queues takes some time; building rests for as long.
_REST: Final = 1.0
_MOST_REST_SECONDS: Final = 1.0


class Metadata:
    """What the broker told last, kept up to date by a thread.

    Args:
        endpoint: the broker.
        settings: how it is followed.
    """

    def __init__(self, endpoint: Endpoint, settings: FollowSettings) -> None:
        self._endpoint, self._settings = endpoint, settings
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow-metadata", daemon=True)
        self._bounds = Bounds(0, 0)
        self._kinds: dict[str, bool] = {}
        self._kinds_asked_at = float("-inf")
        self._newest: Facts | None = None
        self._untaken: Facts | None = None
        self._agreed_at = float("-inf")
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a question that is under way is left to itself."""
        self._stop.set()

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    @property
    def bounds(self) -> Bounds:
        """Where the log of the broker began and ended."""
        with self._guard:
            return self._bounds

    def ask(self) -> Facts:
        """Ask the broker for everything; raises as ``source.ask`` does."""
        facts = ask(self._endpoint, with_tables=True)
        kinds = batch_topics_of(facts.tables)
        with self._guard:
            self._bounds = facts.bounds
            self._kinds, self._kinds_asked_at = kinds, facts.asked_at
            self._newest = facts
            if self._untaken is None:  # one that waits for the copy would wait for ever else
                self._untaken = facts
        return facts

    def take(self, end: int) -> Facts | None:
        """Return the tables that a copy up to a physical offset may show, once.

        They may be of another broker that answers at the address by now, so the logs have to have
        agreed after they were told.
        """
        with self._guard:
            facts = self._untaken
            if facts is None or facts.bounds.high > end or facts.told_at > self._agreed_at:
                return None
            self._untaken = None
            return facts

    def agree(self, at: float) -> None:
        """Say that the log of the broker, as far as it came, was the copy's at a monotonic time."""
        with self._guard:
            self._agreed_at = at

    def use_newest(self) -> None:
        """Drop older tables, which may wait for an end that the broker has lost."""
        with self._guard:
            self._untaken = self._newest

    def is_batch_topic(self, topic: str, needed_at: float, give_up: Callable[[], bool]) -> bool:
        """Tell whether a topic has BatchConsumeQueues.

        The broker is asked if its table is older than a message of the topic may be.

        Args:
            topic: the topic.
            needed_at: monotonic time when the message had been received.
            give_up: tells whether not to wait for an answer any longer.
        """
        while not topic.startswith(LMQ_PREFIX):
            with self._guard:
                kind, asked_at = self._kinds.get(topic), self._kinds_asked_at
            if kind is not None:
                return kind
            if asked_at >= needed_at or give_up():
                break
            try:
                self.ask()
            except BrokerUnreachableError:
                time.sleep(_RETRY_SECONDS)
            except BrokerRefusedError:
                break
        return False

    def _run(self) -> None:
        try:
            self._ask_again_and_again()
        except BaseException as err:  # noqa: BLE001 - raised in the thread that reads
            self._error = err

    def _ask_again_and_again(self) -> None:
        """Keep what is known up to date; the stream notices a failure that lasts."""
        tables_at = time.monotonic()
        interval = self._settings.tables_seconds
        pause = self._settings.timing.bounds
        while not self._stop.wait(min(pause, interval) if interval else pause):
            with suppress(BrokerUnreachableError, BrokerRefusedError):
                if interval and time.monotonic() - tables_at >= interval:
                    self.ask()
                    tables_at = time.monotonic()
                else:
                    bounds = ask_bounds(self._endpoint)
                    with self._guard:
                        self._bounds = bounds


class Building:
    """A thread that builds queues and index after the log, and writes tables that may be shown.

    Args:
        builder: builds them; it belongs to the thread while that runs.
        disk: writes the tables.
        paths: the files of the copy.
        metadata: the tables of the broker.
        end: physical offset up to which the log is on the disk.

    Attributes:
        tables_at: when tables were written the last time, epoch ms; 0 if they were not.
    """

    def __init__(
        self,
        builder: QueueBuilder,
        disk: Disk,
        paths: StorePaths,
        metadata: Metadata,
        end: int,
    ) -> None:
        self._builder, self._disk, self._paths = builder, disk, paths
        self._metadata = metadata
        self._changed = threading.Condition()
        self._end, self._end_at = end, time.monotonic()
        self._is_ending = self._is_dropped = False
        self._error: BaseException | None = None
        self.tables_at = 0
        self._thread = threading.Thread(target=self._run, name="follow-queues", daemon=True)
        self._thread.start()

    @property
    def built(self) -> int:
        """Physical offset up to which queues and index are on the disk."""
        return self._builder.built

    def go_on(self, end: int) -> None:
        """Say up to where the log is on the disk.

        Raises:
            BaseException: what ended the thread.
        """
        self.check()
        with self._changed:
            self._end, self._end_at = end, time.monotonic()
            self._changed.notify()

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Build what is missing, and end the thread; raises as :meth:`go_on` does."""
        self._join(is_dropped=False)
        self.check()

    def drop(self) -> None:
        """End the thread after the step that is under way."""
        self._join(is_dropped=True)

    def _join(self, *, is_dropped: bool) -> None:
        with self._changed:
            self._is_ending = True
            self._is_dropped = is_dropped
            self._changed.notify()
        self._thread.join()

    def is_batch_topic(self, topic: str) -> bool:
        """Tell whether a topic has BatchConsumeQueues; called by the builder."""
        return self._metadata.is_batch_topic(topic, self._end_at, lambda: self._is_ending)

    def _run(self) -> None:
        try:
            while not self._is_dropped:
                began = time.monotonic()
                with self._changed:
                    end, is_ending = self._end, self._is_ending
                was_behind = self._builder.built < end
                is_done = self._builder.step(end)
                self._write_tables()
                if is_done and is_ending:
                    return
                rest = min(_REST * (time.monotonic() - began), _MOST_REST_SECONDS)
                with self._changed:
                    if is_done and was_behind:
                        self._changed.wait_for(lambda: self._is_ending, rest)
                    if is_done and self._end == end and not self._is_ending:
                        self._changed.wait(_WAIT_SECONDS)
        except BaseException as err:  # noqa: BLE001 - raised in the thread that reads
            self._error = err

    def _write_tables(self) -> None:
        facts = self._metadata.take(self._builder.built)
        if facts is not None:
            write_tables(self._disk, self._paths, facts.tables)
            self.tables_at = int(time.time() * 1000)
