"""Plans what a request asks of running brokers, and reads the parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from rmqstore.live.broker import LiveBroker
from rmqstore.live.cluster import LiveBrokers
from rmqstore.live.pulls import first_records
from rmqstore.live.reading import LiveScan
from rmqstore.progress import Advance, ignore_progress
from rmqstore.read.last_record import LastRecord
from rmqstore.read.parts import RangesPart
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Sample, SampledQueues, SampledSlice
from rmqstore.spans import QueueSlice


@dataclass(frozen=True)
class LivePart(RangesPart):
    """Ranges of queues of one running broker; the last record is the newest that may be read."""

    def read(
        self, broker: LiveBroker, request: ScanRequest, advance: Advance = ignore_progress
    ) -> Iterator[pa.RecordBatch]:
        spec = replace(request.spec(broker.name, advance), last_record=self.last_record)
        return request.kept(LiveScan(broker, spec).batches(self.slices))


def plan_live(brokers: LiveBrokers, request: ScanRequest) -> dict[str, LivePart]:
    """Return what is read of each broker, by name.

    Raises:
        BrokerUnreachableError, BrokerRefusedError: a server does not answer, or refuses.
        OptionError: no broker has a topic or queue that is named.
        OffsetOutOfRangeError: chosen messages are gone, and data loss is to fail.
    """
    ranges = brokers.ranges(
        request.selection, request.pruning, fail_on_data_loss=request.fail_on_data_loss
    )
    return {name: LivePart(tuple(slices)) for name, slices in ranges.items() if slices}


def sampled_part(
    broker: LiveBroker, slices: Sequence[QueueSlice], last_record: LastRecord | None = None
) -> LivePart:
    """Return ranges of a broker's queues as a part; two messages of each are sampled.

    Args:
        broker: the broker.
        slices: the ranges.
        last_record: the newest record that may be read; by default the newest of these messages.
    """
    ends = [part._replace(start=at) for part in slices for at in (part.start, part.end - 1)]
    found = first_records(broker, ends)
    if last_record is None:
        newest = (record.last_record for record in found if record is not None)
        last_record = max(newest, default=None)
    records = iter(zip(ends, found, strict=True))
    sampled = []
    for queue_slice in slices:
        samples = [
            Sample(end.start, record.physical_offset, float(record.size))
            for end, record in (next(records), next(records))
            if record is not None
        ]
        sampled.append(SampledSlice(queue_slice, samples[: queue_slice.end - queue_slice.start]))
    return LivePart(tuple(slices), last_record, SampledQueues(sampled))
