"""Running brokers, opened for reading at the address of their name servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.errors import StoreStateError
from rmqstore.format.schema import ALL_COLUMNS
from rmqstore.live.cluster import LiveBrokers
from rmqstore.live.location import LiveLocation, require_served
from rmqstore.live.reading import LiveScan
from rmqstore.progress import Progress, Tally, ignore_progress
from rmqstore.query.arguments import Mode, ScanArguments, ScanOrder, SelectionArguments, spells_out
from rmqstore.query.conditions import NO_PRUNING
from rmqstore.query.selection import parse_selection, require_arguments
from rmqstore.read.message_scan import MessageScan, parse_scan
from rmqstore.read.rows import PLACE
from rmqstore.read.sampling import QUEUE_COLUMNS, newest_of_queues
from rmqstore.spans import QueueSlice
from rmqstore.storage.files.storage import Closing
from rmqstore.store.scan import Scan


class _SelectionArguments(SelectionArguments, total=False):
    """Which messages; and arguments that only the files of a store can answer."""

    scan: ScanOrder
    msg_key: str | Sequence[str] | None
    msg_id: str | Sequence[str] | None
    msg_tags: str | Sequence[str] | None
    index_only: bool
    include_pending: bool
    starting_physical_offset: int | None
    ending_physical_offset: int | None


_OF_FILES: Final = tuple(
    _SelectionArguments.__annotations__.keys() - SelectionArguments.__annotations__.keys()
)


class LiveCluster(Closing):
    """The running brokers of a cluster, opened for reading.

    Messages are read over the network from the masters; nothing is committed, and no consumer group
    is created. A context manager; :func:`rmqstore.open` makes one of an address such as
    ``rocketmq://ns1:9876;ns2:9876``.

    Attributes:
        brokers: plans reads and finds brokers; for modules of this package and for connectors.

    Source: DefaultMQPullConsumer.java.
    """

    def __init__(self, location: LiveLocation) -> None:
        self.brokers = LiveBrokers(location)
        self._is_open = True

    def __repr__(self) -> str:
        """Return the name servers."""
        return f"LiveCluster({str(self.brokers.location)!r})"

    def close(self) -> None:
        """Close the connections. Batches that were read stay valid."""
        self._is_open = False
        self.brokers.close()

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreStateError(f"{self!r} is closed: open it again to read it")

    def topics(self) -> list[str]:
        """Return every topic that the name servers know, including system topics, sorted.

        Raises:
            BrokerUnreachableError: no name server answers.
        """
        self._require_open()
        return self.brokers.topics()

    def queue_ranges(self, topic: str) -> dict[str, dict[int, tuple[int, int]]]:
        """Return where the queues of a topic begin and end, by broker name and queue id.

        There is a warning of queues with messages that a broker lets nobody read.

        Raises:
            OptionError: no broker has the topic.
            BrokerUnreachableError, BrokerRefusedError: a server does not answer, or refuses.
        """
        self._require_open()
        self.brokers.refresh()
        found = {}
        for broker, spans, withdrawn in self.brokers.spans(parse_selection(subscribe=[topic])):
            self.brokers.report_withdrawn(broker, withdrawn, fail_on_data_loss=False)
            found[broker.name] = {queue_id: span for (_, queue_id), span in spans.items()}
        return found

    @spells_out(SelectionArguments, parse_selection)
    def scan(
        self,
        *,
        where: str | pc.Expression | None = None,
        filter: str | None = None,  # noqa: A002 - the option's name
        tags: str | None = None,
        columns: str | Iterable[str] | pa.Schema | None = None,
        mode: Mode = "FAILFAST",
        column_name_of_corrupt_record: str = "_corrupt_record",
        check_crc: bool = True,
        fail_on_data_loss: bool = True,
        limit: int | None = None,
        last: int | None = None,
        verbatim: bool = False,
        progress: Progress = ignore_progress,
        **selection: Unpack[_SelectionArguments],
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
            selection: topics and bounds; ``query.selection.parse_selection`` lists the arguments.
                The other arguments of ``MessageStore.scan`` are refused by name.

        Raises:
            OptionError: arguments that contradict one another.
            UnsupportedFeatureError: brokers cannot answer this; the text says what can.
            BrokerUnreachableError, BrokerRefusedError: while reading.
            OffsetOutOfRangeError: chosen messages are gone and ``fail_on_data_loss`` holds.
        """
        require_arguments(selection, ScanArguments.__annotations__ | {"columns": ...})
        given: dict[str, Any] = {**selection}
        require_served(name for name in _OF_FILES if _asks(given.pop(name, None)))
        request = parse_scan(
            parse_selection(**given),
            where=where,
            sql92=filter,
            tags=tags,
            columns=columns,
            mode=mode,
            corrupt_column=column_name_of_corrupt_record,
            check_crc=check_crc,
            fail_on_data_loss=fail_on_data_loss,
            last=last,
            verbatim=verbatim,
            progress=progress,
        )
        require_served(columns=request.spec.schema.names)
        return Scan(
            request.schema,
            lambda: self._rows(request),
            self._require_open,
            limit=limit,
            is_quick=request.is_quick,
        )

    def count(
        self, *, columns: str | Iterable[str] = "queueOffset", **options: Unpack[ScanArguments]
    ) -> int:
        """Return how many messages a scan gives, by reading them."""
        return self.scan(columns=columns, **options).count()

    def _rows(self, request: MessageScan) -> Iterator[pa.RecordBatch]:
        pruning = NO_PRUNING if request.where is None else request.where.pruning
        self.brokers.refresh()  # topics may have other queues now, and brokers other masters
        ranges = self.brokers.ranges(
            request.selection, pruning, fail_on_data_loss=request.spec.fail_on_data_loss
        )
        if request.progress is not ignore_progress:
            tally = Tally(request.progress)
            n_messages = sum(each.end - each.start for part in ranges.values() for each in part)
            tally.expect(n_messages)
            request = replace(request, spec=replace(request.spec, advance=tally.add_records))
        batches = chain.from_iterable(
            self._of_broker(request, name, slices) for name, slices in ranges.items()
        )
        if request.spec.schema == request.schema:
            return batches
        return (batch.select(request.schema.names) for batch in batches)

    def _of_broker(
        self, request: MessageScan, name: str, slices: Sequence[QueueSlice]
    ) -> Iterator[pa.RecordBatch]:
        spec = replace(request.spec, broker_name=name)
        with self.brokers.opened(name).separate() as broker:  # others may be read meanwhile
            if request.last is None:
                yield from request.kept(LiveScan(broker, spec).batches(slices))
                return
            needed = [ALL_COLUMNS.field(name) for name in (*QUEUE_COLUMNS, PLACE)]
            added = [field for field in needed if field.name not in spec.schema.names]
            wider = replace(spec, schema=pa.schema([*spec.schema, *added]))

            def read(parts: list[QueueSlice]) -> Iterator[pa.RecordBatch]:
                return request.kept(LiveScan(broker, wider).batches(parts))

            newest = newest_of_queues(slices, request.last, read, wider.schema)
            rows = newest.take(pc.sort_indices(newest.column(PLACE)))
            yield from rows.select(spec.schema.names).to_batches()


def _asks(value: object) -> bool:
    """Return whether the value of an argument asks for anything."""
    return value is not None and value is not False and value != "queue"
