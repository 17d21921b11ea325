"""Reads the messages of a store while it is written to, each of them once."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa

from rmqstore.errors import Argument, OffsetOutOfRangeError, OptionError, Text
from rmqstore.read.log_cursor import LogMark
from rmqstore.read.message_scan import MessageScan
from rmqstore.read.scan.spec import READS_ON
from rmqstore.read.session import StoreSession
from rmqstore.read.tiered.tail import follow
from rmqstore.spans import QueueKey, QueueSlice
from rmqstore.storage.broker.broker_run import StoreSigns, queue_folders
from rmqstore.storage.files.retry import ChangingStore

logger = logging.getLogger(__name__)


class Follower:
    """Follows the queues that a scan chooses, as a stream does; see ``read.tail``."""

    def __init__(self, session: StoreSession, request: MessageScan) -> None:
        """Begin where the selection of the scan starts, or before its newest ``last`` messages.

        Args:
            session: the store.
            request: a scan by queue, whose selection is parsed for a stream: it has no end, and
                starts at the latest messages unless it names another start.

        Raises:
            OptionError: the scan is one by log, or a look-up.
        """
        if request.by != "queue" or request.wanted or request.include_pending:
            raise OptionError(
                Text("only the messages of queues can be followed: ", Argument("scan", "queue"))
            )
        self._session, self._request = session, request
        self._tail = follow(session, request.selection)
        paths = session.paths
        self._changing = ChangingStore(
            lambda: StoreSigns.of(paths, queue_folders(paths)), self._tail.doubt
        )
        self._mark: LogMark | None = None
        self._read_until: dict[QueueKey, int] | None = None  # None until the first look

    def messages(self) -> Iterator[pa.RecordBatch]:
        """Look once, and yield what was written since the last look.

        The first look yields what there is from the start on.

        Raises:
            OffsetOutOfRangeError: messages were deleted, or cut off by a recovery, before they were
                read, and data loss is to fail.
        """
        request = self._request
        if self._read_until is None and request.last is not None:
            slices = self._changing.answer(self._everything)
            yield from request.newest(self._session, slices, request.last)
            return
        slices = self._changing.answer(self._new)
        for batch in request.kept(self._session.read_queues(slices, request.spec)):
            yield batch.select(request.schema.names)

    def _everything(self) -> list[QueueSlice]:
        """Look, and return the whole queues."""
        spans = self._tail.spans()
        self._note({key: end for key, (_, end) in spans.items()})
        return self._slices(spans)

    def _new(self) -> list[QueueSlice]:
        """Look, and return the ranges of queues that were not read yet."""
        tail, request = self._tail, self._request
        if self._read_until is None:
            fails = request.spec.fail_on_data_loss
            starts = self._session.starts(request.selection, tail.spans, fail_on_data_loss=fails)
        else:
            tail.look()
            is_cut = self._mark is not None and not tail.holds(self._mark)
            starts = {
                key: self._start(key, end, is_cut=is_cut)
                for key, end in tail.ends.items()
                if is_cut or self._read_until.get(key) != end
            }
        ends = tail.ends
        slices = self._slices({key: (start, ends.get(key, 0)) for key, start in starts.items()})
        self._note({key: max(end, starts.get(key, 0)) for key, end in ends.items()})
        return slices

    def _note(self, ends: dict[QueueKey, int]) -> None:
        self._read_until = (self._read_until or {}) | ends
        self._mark = self._tail.mark

    def _slices(self, spans: dict[QueueKey, tuple[int, int]]) -> list[QueueSlice]:
        return [
            piece
            for key, (start, end) in spans.items()
            if start < end
            for piece in self._session.slices(*key, start, end, self._request.spec)
        ]

    def _start(self, key: QueueKey, end: int, *, is_cut: bool) -> int:
        """Return where a queue goes on: after what was read, unless that was cut off or deleted."""
        tail = self._tail
        assert self._read_until is not None
        read_until = self._read_until.get(key)
        if read_until is None:  # the queue is new
            return tail.first(key)
        start = read_until
        if is_cut or read_until > end:
            if not is_cut and self._mark is not None and tail.began_after(key, self._mark):
                logger.warning("%s-%d starts over at offset %d", *key, tail.first(key))
                return tail.first(key)
            replaced_from = end if self._mark is None else tail.first_after(key, self._mark)
            start = min(read_until, replaced_from)
            if start < read_until:
                logger.warning(
                    "%s-%d: read up to offset %d, but a recovery cut it at %d since; "
                    "going on with what replaced the rest",
                    *key, read_until, start,
                )  # fmt: skip
        first = tail.first(key)
        if start < min(first, end):
            text = f"{key[0]}-{key[1]}: offsets {start} to {first} (excluded) were deleted unread"
            if self._request.spec.fail_on_data_loss:
                raise OffsetOutOfRangeError(Text(text, "; ", READS_ON, " goes on without them"))
            logger.warning("data loss: %s", text)
        return max(start, first)
