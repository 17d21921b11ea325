"""The thread that follows the log of a copy: it builds queues and index, and shows tables."""

from __future__ import annotations

import threading
import time
from typing import Final

from rmqstore.copying.following.background import KindUnknownError, Metadata
from rmqstore.copying.following.upkeep.queue_builder import QueueBuilder
from rmqstore.copying.following.upkeep.tables import write_tables
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.paths import StorePaths

_WAIT_SECONDS: Final = 0.2
# A flush of many queues takes some time; building rests for as long.
_REST: Final = 1.0
_MOST_REST_SECONDS: Final = 1.0
_FAR_BYTES: Final = 64 << 20  # to copy, while which queues are flushed less often


class Building:
    """A thread that builds queues and index after the log, and writes tables that may be shown.

    Args:
        builder: builds them; it belongs to the thread while that runs.
        disk: writes the tables.
        paths: the files of the copy.
        metadata: the tables of the broker.
        end: physical offset up to which the log is on the disk.
        builds_queues: whether queues and index are built; else only tables follow the log.

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
        *,
        builds_queues: bool = True,
    ) -> None:
        self._builds_queues = builds_queues
        self._builder, self._disk, self._paths = builder, disk, paths
        self._metadata = metadata
        self._changed = threading.Condition()
        self._end, self._end_at = end, time.monotonic()
        self._is_ending = self._is_dropped = False
        self._ending_at: float | None = None
        self._begin: int | None = None
        self._is_whole = True
        self._error: BaseException | None = None
        self.tables_at = 0
        self._thread = threading.Thread(target=self._run, name="follow-queues", daemon=True)

    def start(self) -> None:
        """Start the thread, which calls back by :meth:`is_batch_topic` at once."""
        self._thread.start()

    @property
    def built(self) -> int:
        """Physical offset up to which queues and index are on the disk."""
        return self._builder.built

    @property
    def needed_from(self) -> int:
        """Physical offset from which on records are needed to build queues and index."""
        return self._builder.built if self._builds_queues else self._end

    def go_on(self, end: int) -> None:
        """Say up to where the log is on the disk."""
        with self._changed:
            self._end, self._end_at = end, time.monotonic()
            self._changed.notify()

    def check(self) -> None:
        """Raise what ended the thread."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Build what is missing, and end the thread; raises as :meth:`check` does."""
        self._join(is_dropped=False)
        self.check()

    def drop(self) -> None:
        """End the thread after the step that is under way."""
        self._join(is_dropped=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._thread.is_alive()

    @property
    def is_whole(self) -> bool:
        """Whether no step was given up halfway; then :meth:`finish` has built everything."""
        return self._is_whole

    def delete_before(self, begin: int) -> None:
        """Let files be deleted that belong to records before the begin of the log only.

        Where queues are not built, this waits until they are.
        """
        if not self.is_alive:
            self._builder.delete_before(begin)
            return
        with self._changed:
            self._begin = begin
            self._changed.notify()
            while not self._builds_queues and self._begin is not None and self.is_alive:
                self._changed.wait(_WAIT_SECONDS)

    def _forget_begin(self, begin: int) -> None:
        with self._changed:
            if self._begin == begin:  # else it has been set again
                self._begin = None
            self._changed.notify_all()

    def _join(self, *, is_dropped: bool) -> None:
        with self._changed:
            self._is_ending = True
            self._is_dropped = is_dropped
            self._ending_at = self._ending_at or time.monotonic()
            self._changed.notify()
        self._thread.join()

    def is_batch_topic(self, topic: str) -> bool:
        """Tell whether a topic has BatchConsumeQueues; called by the builder.

        Raises as :meth:`Metadata.is_batch_topic` does.
        """
        return self._metadata.is_batch_topic(topic, self._end_at, self._gives_up)

    def _gives_up(self) -> bool:
        """Tell whether an answer of the broker is not awaited any longer."""
        patience = self._metadata.patience
        return self._is_dropped or (
            self._ending_at is not None and time.monotonic() - self._ending_at > patience
        )

    def _run(self) -> None:
        try:
            while not self._is_dropped:
                began = time.monotonic()
                with self._changed:
                    end, is_ending = self._end, self._is_ending
                    begin = self._begin
                if begin is not None:
                    self._builder.delete_before(begin)
                    self._forget_begin(begin)
                was_behind = self._builds_queues and self._builder.built < end
                is_far = not is_ending and self._metadata.bounds.high - end > _FAR_BYTES
                is_done = not self._builds_queues or self._builder.step(end, is_far=is_far)
                self._write_tables(self._builder.built if self._builds_queues else end)
                if is_done and is_ending:
                    return
                rest = min(_REST * (time.monotonic() - began), _MOST_REST_SECONDS)
                with self._changed:
                    if is_done and was_behind and not is_far:
                        self._changed.wait_for(lambda: self._is_ending, rest)
                    if is_done and self._end == end and not self._is_ending:
                        self._changed.wait(_WAIT_SECONDS)
        except KindUnknownError:
            self._is_whole = False
        except BaseException as err:  # noqa: BLE001 - raised in the thread that reads
            self._error = err

    def _write_tables(self, end: int) -> None:
        """Write the tables that a copy up to a physical offset may show."""
        facts = self._metadata.take(end)
        if facts is not None:
            write_tables(self._disk, self._paths, facts.tables)
            self.tables_at = int(time.time() * 1000)
