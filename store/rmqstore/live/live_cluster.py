"""Running brokers, opened for reading at the address of their name servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, Unpack

import pyarrow as pa

from rmqstore.errors import RmqStoreError
from rmqstore.live.cluster import LiveBrokers
from rmqstore.live.location import LiveLocation, require_served
from rmqstore.live.parts import LivePart, plan_live
from rmqstore.notebook import MAX_ROWS, line
from rmqstore.progress import Advance, Progress, Tally, ignore_progress
from rmqstore.query.arguments import ScanArguments, takes
from rmqstore.query.selection import parse_selection
from rmqstore.read.newest import newest_of_queues
from rmqstore.read.request import DEFAULTS, ScanRequest, parse_request
from rmqstore.read.rows import PHYSICAL_OFFSET
from rmqstore.spans import QueueSlice
from rmqstore.storage.files.lifetime import OpenedInTurns, Turns
from rmqstore.store.scan import Scan, topic_table, users_first

# Arguments that only the files of a store can answer.
_OF_FILES: Final = (
    "scan", "msg_key", "msg_id", "msg_tags", "index_only", "include_pending",
    "starting_physical_offset", "ending_physical_offset",
)  # fmt: skip


class LiveCluster(OpenedInTurns):
    """The running brokers of a cluster, opened for reading.

    Messages are read over the network from the masters; nothing is committed, and no consumer group
    is created. A context manager; :func:`rmqstore.open` makes one of an address such as
    ``rocketmq://ns1:9876;ns2:9876``.

    Threads may share it: they take turns to ask where queues are, and read messages side by side.

    Source: DefaultMQPullConsumer.java.
    """

    def __init__(self, location: LiveLocation) -> None:
        self.turns = Turns(f"LiveCluster({str(location)!r})", "open it again to read it")
        self._brokers = LiveBrokers(location)

    def __repr__(self) -> str:
        """Return the name servers."""
        return f"LiveCluster({str(self._brokers.location)!r})"

    @contextmanager
    def _asked(self) -> Iterator[LiveBrokers]:
        """Return the brokers, whose connections nobody else uses meanwhile.

        Topics may have other queues than before, and brokers other masters.
        """
        with self.turns.turn():
            self.turns.require()
            self._brokers.refresh()
            yield self._brokers

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with a table of the first topics or why there is none."""
        try:
            with self._asked() as brokers:
                topics = users_first(brokers.topics())
                routes = brokers.routes(topics[:MAX_ROWS])
        except RmqStoreError as err:
            return line(repr(self)) + line(str(err))
        rows = []
        for topic in topics[:MAX_ROWS]:
            queues = routes[topic].queues.values() if topic in routes else ()
            rows.append((topic, sum(counts.read for counts in queues)))
        return line(repr(self)) + topic_table(rows, len(topics))

    def _close(self, *, completes: bool) -> None:
        del completes
        self._brokers.close()

    def topics(self) -> list[str]:
        """Return every topic that the name servers know, including system topics, sorted.

        Raises:
            BrokerUnreachableError: no name server answers.
        """
        with self._asked() as brokers:
            return brokers.topics()

    def queue_ranges(self, topic: str) -> dict[str, dict[int, tuple[int, int]]]:
        """Return where the queues of a topic begin and end, by broker name and queue id.

        There is a warning of queues with messages that a broker lets nobody read.

        Raises:
            OptionError: no broker has the topic.
            BrokerUnreachableError, BrokerRefusedError: a server does not answer, or refuses.
        """
        found = {}
        with self._asked() as brokers:
            for broker, spans, withdrawn in brokers.spans(parse_selection(subscribe=[topic])):
                brokers.report_withdrawn(broker, withdrawn, fail_on_data_loss=False)
                found[broker.name] = {queue_id: span for (_, queue_id), span in spans.items()}
        return found

    @takes(ScanArguments, DEFAULTS)
    def scan(
        self,
        *,
        columns: str | Iterable[str] | pa.Schema | None = None,
        **options: Unpack[ScanArguments],
    ) -> Scan:
        """Return the chosen messages, which are read when they are asked for.

        Queues are read up to where they end when the reading begins. The messages of one queue come
        in order, one broker after the other.

        Args:
            where: a condition on columns, as of ``MessageStore.scan``. What it says of topics,
                queues, queue offsets and brokers leaves others unread.
            filter: an SQL92 expression over properties, which is evaluated here.
            tags: a tag expression such as ``A || B``. Brokers leave out the others by their hash.
            columns: columns to return; all by default.
            mode: FAILFAST, DROPMALFORMED or PERMISSIVE: what is done with damaged records.
            column_name_of_corrupt_record: the column with the damage in mode PERMISSIVE.
            check_crc: whether to check CRCs.
            fail_on_data_loss: whether it is an error if chosen messages are gone.
            verbatim: return fields exactly as stored, for copies.
            limit: return only this many messages, the first ones; reading stops then.
            last: return only the newest messages: this many of each queue.
            progress: called while the scan is read, with the messages that are done and the total.
            options: topics and bounds, as of ``MessageStore.scan``, whose other arguments are
                refused by name.

        Raises:
            OptionError: arguments that contradict one another.
            UnsupportedFeatureError: brokers cannot answer this; the text says what can.
            BrokerUnreachableError, BrokerRefusedError: while reading.
            OffsetOutOfRangeError: chosen messages are gone and ``fail_on_data_loss`` holds.
        """
        given: dict[str, Any] = {"columns": columns, **options}
        require_served([name for name in _OF_FILES if _asks(given.pop(name, None))])
        limit = given.pop("limit", None)
        progress = given.pop("progress", ignore_progress)
        request = parse_request(given)
        require_served(columns=request.spec().schema.names)
        return Scan(
            request.schema,
            lambda: self._rows(request, progress),
            self._require_open,
            limit=limit,
            is_quick=request.is_quick,
        )

    def count(
        self, *, columns: str | Iterable[str] = "queueOffset", **options: Unpack[ScanArguments]
    ) -> int:
        """Return how many messages a scan gives, by reading them."""
        return self.scan(columns=columns, **options).count()

    def _rows(self, request: ScanRequest, progress: Progress) -> Iterator[pa.RecordBatch]:
        with self._asked() as brokers:
            parts = plan_live(brokers, request)
        tally = Tally(progress)
        tally.expect(sum(part.n_records for part in parts.values()))
        advance = tally.add_records
        reads = (self._of_broker(request, name, part, advance) for name, part in parts.items())
        return request.returned(chain.from_iterable(reads))

    def _of_broker(
        self, request: ScanRequest, name: str, part: LivePart, advance: Advance
    ) -> Iterator[pa.RecordBatch]:
        with self._brokers.opened(name).separate() as broker:  # others may be read meanwhile
            if request.last is None:
                yield from part.read(broker, request, advance)
                return

            def read(
                wider: ScanRequest, queue_slices: list[QueueSlice]
            ) -> Iterator[pa.RecordBatch]:
                return LivePart(tuple(queue_slices)).read(broker, wider, advance)

            yield from newest_of_queues(request, part.slices, request.last, read, PHYSICAL_OFFSET)


def _asks(value: object) -> bool:
    """Return whether the value of an argument asks for anything."""
    return value is not None and value is not False and value != "queue"
