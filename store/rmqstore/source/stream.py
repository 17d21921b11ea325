"""A stream: new messages of stores or running brokers, from one offset to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Set as AbstractSet
from typing import ClassVar, Generic, NamedTuple, TypeVar

from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.damage import READS_ON
from rmqstore.read.last_record import LastRecord
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits
from rmqstore.source.continuation import Continuation, Loss, Tail
from rmqstore.source.stream_offset import Key, StreamOffset
from rmqstore.source.tasks import Task
from rmqstore.spans import QueueSlice

T = TypeVar("T")
AnyTail_co = TypeVar("AnyTail_co", bound=Tail, covariant=True)

# Returns the ends up to which queues may be read, of their starts and their ends.
Admit = Callable[[Mapping[Key, int], dict[Key, int]], dict[Key, int]]


class Weight(NamedTuple):
    """The messages between two offsets of a queue."""

    n_bytes: float  # an estimate
    physical_offset: int  # of the first message


class Stream(ABC, Generic[AnyTail_co]):
    """New messages of stores or running brokers, from one offset to the next.

    All that it keeps from one poll to the next are the tails, which make further polls cheap, and
    the losses that there was a warning of.

    Attributes:
        request: what is asked for.
        forgets_gone: whether a queue that is gone starts over if it comes back.
    """

    forgets_gone: ClassVar[bool]

    def __init__(self, request: ScanRequest) -> None:
        """Follow nothing yet.

        Args:
            request: a scan by queue, whose selection is parsed for a stream: it has no end, and
                starts at the latest messages unless it names another start.

        Raises:
            OptionError: the scan is one by log, or reads pending messages.
        """
        if not request.is_by_queue or request.include_pending:
            raise OptionError("only the messages of queues can be followed: `scan=queue`")
        self.request = request
        self._missing: set[str] = set()  # brokers that there was a warning of
        self._gone: set[Key] = set()  # deleted queues that there was a warning of

    @property
    @abstractmethod
    def tails(self) -> Mapping[str, AnyTail_co]:
        """The stores or brokers that are followed now, by broker name, as of their last poll.

        Stores are opened and polled when they are asked for first.
        """

    @abstractmethod
    def poll(self) -> None:
        """Look for changes in all that is followed."""

    @abstractmethod
    def _again(self, ask: Callable[[], T]) -> T:
        """Return the answer to a question, asked again while what is followed changes."""

    @abstractmethod
    def _initial_offset(self) -> StreamOffset:
        """Return the offset at which the request starts, as asked once."""

    @abstractmethod
    def _task(
        self, broker: str, slices: list[QueueSlice], limits: Limits, last_record: LastRecord | None
    ) -> Task:
        """Return what is read of ranges of a broker's queues, up to a record."""

    def weight(self, key: Key, start: int, end: int) -> Weight:
        """Return an estimate of the messages of a queue between two offsets.

        Raises:
            UnsupportedFeatureError: what is followed does not know it.
        """
        raise UnsupportedFeatureError(f"the bytes of {start} to {end} of {key} are not known")

    def rows_within(self, key: Key, start: int, end: int, n_bytes: int) -> int:
        """Return how many messages of a queue, from the first of a range on, fit into bytes.

        Raises as :meth:`weight` does.
        """
        raise UnsupportedFeatureError(f"how much of {start} to {end} of {key} is {n_bytes} bytes")

    @abstractmethod
    def _report_missing(self, brokers: Collection[str]) -> None:
        """Raise an error for brokers of an offset that are not followed, or log a warning."""

    @abstractmethod
    def _report_gone(self, queues: Mapping[Key, int]) -> None:
        """Raise an error for queues that are not there any more, or log a warning.

        Args:
            queues: the queue offsets up to which they were delivered.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what is open."""

    def _expect(self, brokers: AbstractSet[str]) -> None:
        """Take an only store whose files give no name for that of the only broker of an offset."""

    def _invalidate(self, brokers: Iterable[str]) -> None:
        """Let the next poll cover all of the stores of some brokers."""

    def _withheld(self, _since: StreamOffset) -> list[Loss]:
        """Return the messages after an offset that are there and nobody may read."""
        return []

    def answer(self, ask: Callable[[StreamOffset], T]) -> T:
        """Poll, and return the answer to a question about the offset after all that was found.

        The question may read what is followed, so both are repeated if that changes meanwhile.
        """

        def polled() -> T:
            self.poll()
            return ask(self.found())

        return self._again(polled)

    def found(self) -> StreamOffset:
        """Return the offset after all that the last polls found."""
        ends: dict[Key, int] = {}
        last_records: dict[str, LastRecord] = {}
        first_records: dict[str, LastRecord] = {}
        for broker, tail in self.tails.items():
            ends |= {(broker, *queue): end for queue, end in tail.ends.items()}
            if tail.last_record is not None:
                last_records[broker] = tail.last_record
            if tail.first_record is not None:
                first_records[broker] = tail.first_record
        return StreamOffset(ends, last_records, first_records=first_records)

    def last_offset(self) -> StreamOffset:
        """Return the offset after all that the last poll found; if there was none, poll first."""
        return self.found() if self.tails else self.answer(lambda polled: polled)

    def initial_offset(self) -> StreamOffset:
        """Return the offset at which the request starts."""
        return self._again(self._initial_offset)

    def next_offset(
        self,
        since: StreamOffset,
        target: Mapping[Key, int] | None = None,
        admit: Admit | None = None,
    ) -> StreamOffset:
        """Return the offset after new messages; ``since`` itself if there are none.

        Args:
            since: the offset after what was delivered.
            target: where the stream is to end; None for no end.
            admit: keeps them within limits; None for all of them.

        Raises:
            OffsetOutOfRangeError: delivered or new messages are gone, and data loss is to fail.
        """
        self._expect(since.brokers)
        return self.answer(lambda polled: self._next_offset(polled, since, target, admit))

    def _next_offset(
        self,
        polled: StreamOffset,
        since: StreamOffset,
        target: Mapping[Key, int] | None,
        admit: Admit | None,
    ) -> StreamOffset:
        ends = {**polled.queues}
        if target is not None:
            ends = {key: min(ends.get(key, 0), end) for key, end in target.items()}
        after = self._continuation(polled, since)
        starts, losses = after.starts(ends)
        gone = after.gone()
        self._report_gone({key: since.queues[key] for key in gone - self._gone})
        self._gone = gone
        if self.request.fail_on_data_loss:  # else it is said when the messages are planned
            self._report(losses)
        ends = {key: max(end, starts[key]) for key, end in ends.items()}
        if admit is not None:
            ends = admit(starts, ends)
        # queues that a recovery removed, or that were deleted; they start over if they come back
        removed = {key: 0 for key in since.queues if key[0] in after.cut and key not in ends}
        if self.forgets_gone:
            removed |= dict.fromkeys(gone, 0)
        queues = {**since.queues, **removed, **ends}
        if queues == since.queues and not after.cut and not after.replaced:
            return since
        return after.offset(queues)

    def tasks(self, since: StreamOffset, until: StreamOffset, limits: Limits) -> list[Task]:
        """Return the tasks of the messages between two offsets, the same if planned again.

        Raises:
            OffsetOutOfRangeError: some of them are gone, and data loss is to fail.
        """
        self._expect(since.brokers)
        return self.answer(
            lambda polled: [
                self._task(broker, slices, limits, until.last_records.get(broker))
                for broker, slices in self.slices(polled, since, until).items()
            ]
        )

    def slices(
        self, polled: StreamOffset, since: StreamOffset, until: StreamOffset
    ) -> dict[str, list[QueueSlice]]:
        """Return the ranges of queues between two offsets, by broker, and report what is lost."""
        slices, losses = self._between(polled, since, until)
        if not self.request.fail_on_data_loss:
            tails = self.tails
            unconfirmed = {
                broker
                for broker, of_broker in slices.items()
                if not tails[broker].are_confirmed(of_broker)
            }
            if unconfirmed:
                self._invalidate(unconfirmed)
                self.poll()
                slices, losses = self._between(self.found(), since, until)
                slices = {
                    broker: tails[broker].confirmed(of_broker)
                    for broker, of_broker in slices.items()
                }
        self._report(losses)
        return slices

    def _between(
        self, polled: StreamOffset, since: StreamOffset, until: StreamOffset
    ) -> tuple[dict[str, list[QueueSlice]], list[Loss]]:
        """Return the ranges of queues between two offsets, by broker, and what was lost of them."""
        self._require_brokers(until)
        after = self._continuation(polled, since)
        ends = {
            key: end
            for key, end in until.queues.items()
            if since.queues.get(key) != end or key in after.replaced
        }
        starts, losses = after.starts(ends)
        changed = StreamOffset(ends, until.last_records, until.left, until.first_records)
        stops = Continuation(self.tails, polled, changed).stops(ends)
        slices: dict[str, list[QueueSlice]] = {}
        for key, end in ends.items():
            start = starts[key]
            stop = stops[key]
            if stop < end and start < end:
                text = f"offsets {max(stop, start)} to {end} (excluded) are gone"
                losses.append(Loss(key, text))
            if start < stop:
                broker = key[0]
                of_queue = self.tails[broker].slices(key[1:], start, stop, self.request)
                slices.setdefault(broker, []).extend(of_queue)
        return slices, losses

    def _continuation(self, polled: StreamOffset, since: StreamOffset) -> Continuation:
        """Return how queues continue after an offset, and report what nobody may read.

        A queue of such messages stays where it is in the offset, and continues from there when it
        is served again.

        Raises:
            OffsetOutOfRangeError: there are such messages, and data loss is to fail.
        """
        self._require_brokers(since)
        self._report(self._withheld(since))
        return Continuation(self.tails, polled, since)

    def _require_brokers(self, offset: StreamOffset) -> None:
        """Refuse brokers that an offset has messages of and that are not followed.

        If data loss is not to fail, there is one warning of each.

        Raises:
            OffsetOutOfRangeError: there is one, and data loss is to fail.
        """
        missing = offset.brokers - self.tails.keys() - self._missing
        if missing:
            self._report_missing(missing)
            self._missing |= missing

    def _report(self, losses: Iterable[Loss]) -> None:
        """Raise an error for lost messages, or log a warning if data loss is not to fail.

        Raises:
            OffsetOutOfRangeError: data loss is to fail.
        """
        for (broker, topic, queue_id), what in losses:
            text = f"{topic}-{queue_id} of broker {broker}: {what}"
            remedy = f"{READS_ON} continues with what is left"
            self.request.report_loss(text, remedy, "continuing with what is left")
