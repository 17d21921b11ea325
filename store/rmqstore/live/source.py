"""The running brokers that a read names, as a source of tasks."""

from __future__ import annotations

from dataclasses import dataclass

from rmqstore.live.cluster import LiveBrokers
from rmqstore.live.location import LiveLocation, require_served
from rmqstore.live.parts import plan_live, sampled_part
from rmqstore.live.stream import BrokerStream
from rmqstore.live.tasks import BrokerTask
from rmqstore.read.request import ScanRequest
from rmqstore.read.split import Limits


@dataclass(frozen=True)
class BrokerSource:
    """The running brokers of a cluster."""

    location: LiveLocation

    def __str__(self) -> str:
        """Return the address of the name servers."""
        return str(self.location)

    def plan(self, request: ScanRequest, _: Limits) -> list[BrokerTask]:
        """Return what a request asks of all brokers, one after the other.

        Raises:
            OptionError: no broker has a topic or queue that is named.
            UnsupportedFeatureError: only the files of a store have a column.
            BrokerUnreachableError, BrokerRefusedError: a server does not answer, or refuses.
        """
        require_served(columns=request.schema.names)
        with LiveBrokers(self.location) as brokers:
            parts = plan_live(brokers, request)
            return [
                BrokerTask.of(brokers.opened(name), sampled_part(brokers.opened(name), part.slices))
                for name, part in parts.items()
            ]

    def follow(self, request: ScanRequest) -> BrokerStream:
        """Return the stream of new messages of the brokers.

        Raises:
            UnsupportedFeatureError: only the files of a store have a column.
        """
        require_served(columns=request.schema.names)
        return BrokerStream(self.location, request)
