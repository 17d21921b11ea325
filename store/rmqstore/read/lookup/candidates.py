"""Finding messages by key and by id: where they may stand. Who reads them there sees whether they do.

Source: DefaultMessageStore.java#queryMessage; MQAdminImpl.java#queryMessage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, overload

import numpy as np

from rmqstore.errors import OffsetOutOfRangeError, StoreFormatError, StoreStateError
from rmqstore.format.columns.dispatch_requests import key_hashes
from rmqstore.format.layout import BLANK_MAGIC, PROPERTY_UNIQ_KEY, Positions
from rmqstore.format.record import parse_message_id
from rmqstore.format.schema import Message
from rmqstore.query.keys import KEY_SEPARATOR, Wanted, is_offset_id
from rmqstore.spans import FOREVER, LogSlice, Span
from rmqstore.storage.index.search import IndexSearch
from rmqstore.storage.log.commitlog import CommitLog, Place
from rmqstore.storage.recovery.log_end import find_written_end

logger = logging.getLogger(__name__)

SMALL_GAPS: Final = 64 << 10  # bytes of the log that are read rather than called uncovered


class Found(NamedTuple):
    """Where messages that are looked for may stand. Who reads them sees whether they do: the index is not trusted."""

    places: Positions  # physical offsets, rising
    uncovered: list[Span]  # parts of the log that the index does not tell of, rising

    @property
    def n_uncovered_bytes(self) -> int:
        """How much of the log the index does not tell of."""
        return sum(span.end - span.start for span in self.uncovered)

    def places_outside(self, pieces: Sequence[LogSlice]) -> Positions:
        """Return the places that are in none of some pieces of the log, which are read as a whole."""
        bounds = np.array([bound for piece in pieces for bound in (piece.start, piece.end)], np.int64)
        found: Positions = self.places[np.searchsorted(bounds, self.places, side="right") % 2 == 0]
        return found


@dataclass(frozen=True)
class QueryResult(Sequence[Message]):
    """The messages that a query found, in the order of the log: a sequence of them.

    Attributes:
        messages: they.
        uncovered: the parts of the log, by physical offset, that no index file tells of.
        was_scanned: whether these parts were read, too; else messages in them were not found.
    """

    messages: tuple[Message, ...]
    uncovered: tuple[Span, ...]
    was_scanned: bool

    @property
    def is_complete(self) -> bool:
        """Whether no message was missed for want of an index."""
        return self.was_scanned or not self.uncovered

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, row: int) -> Message: ...
    @overload
    def __getitem__(self, row: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, row: int | slice) -> Message | tuple[Message, ...]:
        return self.messages[row]


class Lookup:
    """Looks for messages in one store.

    Args:
        log_end: physical offset where the log of a store that was not closed ends; None asks for nothing.
        flushed_until: store time, ms, until which index files were on disk, where a crash may have lost what was not.
    """

    def __init__(
        self,
        log: CommitLog,
        index: IndexSearch,
        log_end: Callable[[], int | None],
        flushed_until: Callable[[], int] = lambda: FOREVER,
    ) -> None:
        self._log, self._index, self._log_end, self._flushed_until = log, index, log_end, flushed_until
        self._whole_until = -1  # the last place that was seen to have all of its keys in the index

    def find(self, wanted: Wanted, topics: Sequence[str], begin: int | None = None, end: int | None = None) -> Found:
        """Return where messages may stand that are looked for.

        Args:
            wanted: what is.
            topics: of which; the index knows a key together with its topic.
            begin: stored from then on, ms.
            end: stored until then, ms, included.

        An index that contradicts itself covers nothing.

        Raises:
            FileDeletedError: a file of the log that may hold one was deleted since it was listed.
        """
        # What is not covered is asked first: a broker may index it a moment later, and then it is found, too.
        whole = self._whole()
        by_id = [parse_message_id(one)[1] for one in wanted.msg_ids if is_offset_id(one)]
        places = np.array(by_id, np.int64)
        try:
            uncovered = self.uncovered() if topics else [whole]
            names = sorted({*wanted.keys, *wanted.msg_ids})
            hashes = key_hashes(list(topics), names).ravel()
            places = np.union1d(self._index.find(hashes, begin or 0, FOREVER if end is None else end), places)
        except StoreStateError as err:
            logger.warning("the index is not used: %s", err)
            uncovered = [whole]
        places = places[(places >= whole.start) & (places < whole.end)]
        for segment in self._log.segments:
            if np.searchsorted(places, segment.start) < np.searchsorted(places, segment.end):
                self._log.read(segment, 0, 0)  # it is there still, or the files are listed anew
        return Found(places, uncovered)

    def _whole(self) -> Span:
        end = self._log_end()
        return Span(self._log.min_offset, self._log.max_offset if end is None else end)

    def uncovered(self) -> list[Span]:
        """Return the parts of the log whose keys are in no index file; each begins where a record does.

        An index file tells of the records from its first item's to its last item's. An older file, now lost, may have
        had the first keys of the record where a file begins; the last keys of the record where it ends may stand in the
        next file. Of the newest file, more keys may be on their way.

        For example, ten records of 100 bytes each, and files that tell of records 200 to 400, 400 to 500, and 700 to
        800, leave three parts uncovered::

            [0, 300)     no file tells of the first two records, nor surely of all keys of the record at 200
            [600, 800)   the same before the third file; the second one goes on where the first ends
            [900, 1000)  after the newest file; from 800 on if a key of the record at 800 is not in the index yet
        """
        whole, spans = self._whole(), self._index.spans(self._flushed_until())
        gaps, covered_until = list[Span](), whole.start
        for number, span in enumerate(spans):
            first, last = max(span.start, whole.start), min(span.end, whole.end)
            if not self._are_heads(first, last, whole) or last < covered_until:
                continue
            if first > covered_until:
                gaps.append(Span(covered_until, self._after(first, whole)))
            is_newest = number + 1 == len(spans)
            covered_until = last if is_newest and not self._has_all_keys(last) else self._after(last, whole)
        end = self._end_of_records(covered_until, whole)
        return [*gaps, Span(covered_until, end)] if covered_until < end else gaps

    def _end_of_records(self, reached: int, whole: Span) -> int:
        """Return where the records end; the bytes tell only in a log that was closed, and are read only if need be."""
        is_known = reached >= whole.end or self._log_end() is not None
        return whole.end if is_known else find_written_end(self._log)

    def _are_heads(self, start: int, end: int, whole: Span) -> bool:
        return all(place in (whole.start, whole.end) or self._log.is_head(place) for place in (start, end))

    def _has_all_keys(self, place: int) -> bool:
        """Tell whether the index holds every key of the record at a place."""
        if place == self._whole_until:
            return True
        try:
            found = self._log.get(place, check_crc=False)
        except (StoreFormatError, LookupError, OffsetOutOfRangeError):
            return False
        hashes = key_hashes([found.topic], _keys_of(found)).ravel()
        if all(place in self._index.find(hashes[at : at + 1]) for at in range(len(hashes))):
            self._whole_until = place
        return place == self._whole_until

    def _after(self, place: int, whole: Span) -> int:
        """Return where the record after the one at a place begins; the end of the log where none was written."""
        segment = self._log.find(place)
        if segment is None:
            return place
        position = place - segment.start
        at = position + min(max(self._log.frame(Place(segment, position))[0], 0), segment.size - position)
        total_size, magic = following = self._log.frame(Place(segment, at))
        if at >= segment.size or (magic == BLANK_MAGIC and total_size <= segment.size - at):
            return min(segment.end, whole.end)
        return whole.end if following == (0, 0) and segment.end >= self._log.max_offset else segment.start + at


def _keys_of(message: Message) -> list[str]:
    """Return what a message is found by. Source: IndexService.java#buildIndex."""
    keys = [message.properties.get(PROPERTY_UNIQ_KEY, ""), *(message.keys or "").split(KEY_SEPARATOR)]
    return [key for key in keys if key]
