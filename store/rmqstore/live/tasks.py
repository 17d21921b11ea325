"""Tasks that read running brokers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from rmqstore.live.broker import LiveBroker
from rmqstore.live.location import LiveLocation
from rmqstore.live.parts import LivePart
from rmqstore.read.request import ScanRequest
from rmqstore.remoting import Address
from rmqstore.source.tasks import Task


@dataclass(frozen=True)
class BrokerTask(Task):
    """A part of a read of one running broker."""

    part: LivePart
    location: LiveLocation
    broker: str
    address: Address

    @classmethod
    def of(cls, broker: LiveBroker, part: LivePart) -> BrokerTask:
        """Return the task of a part of a broker."""
        return cls(part, broker.location, broker.name, broker.address)

    @property
    def source(self) -> str:
        """The name of the broker and its address."""
        return f"{self.broker} ({self.address})"

    def read(self, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a request."""
        with LiveBroker(self.broker, self.address, self.location) as broker:
            yield from self.part.read(broker, request)
