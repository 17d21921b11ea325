"""Work beside the stream, each in a thread: questions to the broker, and flushes of the log.

The thread that reads the stream writes the log. It waits for these only where it has to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, Generic, TypeVar, cast

from rmqstore.errors import BrokerRefusedError, BrokerUnreachableError
from rmqstore.format.layout import LMQ_PREFIX
from rmqstore.replica.broker import Facts, Informant, batch_topics_of
from rmqstore.replica.broker_requests import TOPICS, LogBounds
from rmqstore.replica.settings import FollowSettings

T = TypeVar("T")
logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1  # between two looks whether an answer is still awaited


class GaveUpError(Exception):
    """An answer of the broker is not awaited any longer."""


class KindUnknownError(Exception):
    """The follower ends before it could ask of which kind the queues of a topic are."""


class Question(Generic[T]):
    """A question in a thread of its own, so that whoever asked can give up at any moment.

    Args:
        question: asks it; returns the answer.
    """

    def __init__(self, question: Callable[[], T]) -> None:
        self._question = question
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="follow-question", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._question()
        except BaseException as err:  # noqa: BLE001 - raised in the thread that asked
            self._error = err

    def result(self, give_up: Callable[[], bool]) -> T:
        """Return the answer, or raise what the question raised.

        Raises:
            GaveUpError: the answer is not awaited any longer; the thread is left to itself.
        """
        while self._thread.is_alive():
            if give_up():
                raise GaveUpError
            self._thread.join(_LOOK_SECONDS)
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class Metadata:
    """What the broker reported last, kept up to date by a thread.

    Args:
        informant: where the broker is asked.
        settings: how it is followed.
    """

    def __init__(self, informant: Informant, settings: FollowSettings) -> None:
        self._informant, self._settings = informant, settings
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow-metadata", daemon=True)
        self._bounds = LogBounds(0, 0)
        self._bounds_at = float("-inf")
        self._answered_at = 0
        self._kinds: dict[str, bool] = {}
        self._kinds_asked_at = float("-inf")
        self._newest: Facts | None = None
        self._untaken: Facts | None = None
        self._agreed_at = float("-inf")
        self._agreed_low: int | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start the thread, if there is anything to ask for and it is not running yet."""
        if self._informant.tells_all and not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        """End the thread; a question that is under way is left to itself."""
        self._stop.set()

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    @property
    def patience(self) -> float:
        """How many seconds the end of a follower waits for an answer."""
        return self._settings.timing.last_answer

    @property
    def bounds(self) -> LogBounds:
        """Where the log of the broker began and ended."""
        with self._guard:
            return self._bounds

    @property
    def answered_at(self) -> int:
        """When the broker reported its bounds the last time, epoch ms; 0 if it has not."""
        with self._guard:
            return self._answered_at

    def agreed_low(self) -> int | None:
        """Return where the broker's log began when it was last known to be the copy's.

        None if it has not been. LogBounds that were reported since may be those of another broker.
        """
        with self._guard:
            return self._agreed_low

    def ask_unless(self, give_up: Callable[[], bool]) -> Facts:
        """Ask the broker for everything, unless this is given up meanwhile.

        Raises:
            GaveUpError: it was.
            BrokerUnreachableError, BrokerRefusedError: as of ``Informant.ask``.
        """
        return Question(self.ask).result(give_up)

    def bounds_unless(self, position: int, give_up: Callable[[], bool]) -> LogBounds:
        """Ask for the bounds of the log as an informant does; raises as :meth:`ask_unless` does."""
        return Question(partial(self._informant.bounds, position)).result(give_up)

    def _take_bounds(self, bounds: LogBounds, told_at: float) -> None:
        self._bounds, self._bounds_at = bounds, told_at
        if self._informant.tells_all:
            self._answered_at = int(time.time() * 1000)

    def ask(self) -> Facts:
        """Ask the broker for everything; raises as an informant does."""
        facts = self._informant.ask()
        before = self._newest
        if before is not None:  # tables that did not change are held once
            same = {
                name: content
                for name, content in before.tables.items()
                if facts.tables.get(name) == content
            }
            facts = facts._replace(tables={**facts.tables, **same})
        if before is not None and before.tables.get(TOPICS) is facts.tables.get(TOPICS):
            kinds = self._kinds
        else:
            table = facts.tables.get(TOPICS)
            kinds = batch_topics_of(b"" if table is None else table.content)
        with self._guard:
            self._take_bounds(facts.bounds, facts.told_at)
            self._kinds, self._kinds_asked_at = kinds, facts.asked_at
            self._newest = facts
            if self._untaken is None:  # one that waits for the copy would wait for ever else
                self._untaken = facts
        return facts

    def take(self, end: int) -> Facts | None:
        """Return the tables that a copy up to a physical offset may show, once.

        They may be of another broker that now answers at the address, so the logs have to have
        agreed after they were reported.
        """
        with self._guard:
            facts = self._untaken
            if facts is None or facts.bounds.high > end or facts.told_at > self._agreed_at:
                return None
            if not facts.tables:  # only the HA port is asked
                return None
            self._untaken = None
            return facts

    def agree(self, at: float) -> None:
        """Say that the log of the broker, as far as it came, was the copy's at a monotonic time."""
        with self._guard:
            self._agreed_at = at
            if self._bounds_at <= at:
                self._agreed_low = self._bounds.low

    def use_newest(self) -> None:
        """Drop what is older: the broker may have lost the end that tables wait for."""
        with self._guard:
            self._untaken = self._newest
            self._agreed_low = None

    def is_batch_topic(self, topic: str, needed_at: float, give_up: Callable[[], bool]) -> bool:
        """Return whether a topic has BatchConsumeQueues.

        The broker is asked if its table is older than a message of the topic may be.

        Args:
            topic: the topic.
            needed_at: monotonic time when the message had been received.
            give_up: returns whether not to wait for an answer any longer.

        Raises:
            KindUnknownError: there was no answer. A guess would be kept: queues of the wrong kind
                have to be built again.
        """
        is_told = False
        while not topic.startswith(LMQ_PREFIX):
            with self._guard:
                kind, asked_at = self._kinds.get(topic), self._kinds_asked_at
            if kind is not None:
                return kind
            if not self._informant.tells_all:
                logger.warning("%s: taken for an ordinary topic, as its kind is not known", topic)
                return False
            if asked_at >= needed_at:
                break
            try:
                self.ask_unless(give_up)
            except GaveUpError as err:
                raise KindUnknownError(topic) from err
            except (BrokerUnreachableError, BrokerRefusedError) as err:
                if not is_told:
                    logger.warning("queues wait for the kind of topic %s: %s", topic, err)
                is_told = True
                until = time.monotonic() + _RETRY_SECONDS
                while time.monotonic() < until and not give_up():
                    time.sleep(_LOOK_SECONDS)
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
                    bounds = self._informant.bounds(self._bounds.high)
                    with self._guard:
                        self._take_bounds(bounds, time.monotonic())


class Syncing:
    """Brings the log and the state to the disk in a thread, one time after the other."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "follow-sync")
        self._pending: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the last one is under way."""
        return self._pending is not None and not self._pending.done()

    def begin(self, sync: Callable[[], None]) -> None:
        """Begin one; raises as :meth:`settle` does."""
        self.settle()
        self._pending = self._pool.submit(sync)

    def settle(self) -> None:
        """Wait for the last one, and raise what it raised."""
        if self._pending is not None:
            try:
                self._pending.result()
            finally:
                if self._pending.done():  # else an interrupt came
                    self._pending = None

    def check(self) -> None:
        """Raise what the last one raised, if it has ended."""
        if not self.is_busy:
            self.settle()

    def close(self) -> None:
        """End the thread, whatever the last one raises."""
        self._pool.shutdown()
