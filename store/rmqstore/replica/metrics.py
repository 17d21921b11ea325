"""Metrics of followers for Prometheus: over HTTP, or in a file for its node exporter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rmqstore.errors import StoreStateError, UnsupportedFeatureError
from rmqstore.remoting.client import Address
from rmqstore.replica.cluster import ClusterProgress

if TYPE_CHECKING:
    from prometheus_client import Metric

_PREFIX: Final = "rmqstore_follow"
_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "connected": ("is_connected", "Whether bytes of the broker's log are being received."),
    "begin_offset": ("begin", "Physical offset where the copy begins."),
    "end_offset": ("end", "Physical offset after the last record that is on the disk."),
    "source_end_offset": ("source_end", "Where the broker's log ended when it was last asked."),
    "queues_end_offset": ("queues_end", "Physical offset up to which queues and index are built."),
    "lag_bytes": ("bytes_behind", "What the copy is known to lack."),
    "lag_seconds": ("seconds_behind", "Age of the newest record of a copy that lacks some."),
}
_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "connections": ("n_connections", "Connections since the follower was started."),
    "cuts": ("n_cuts", "How many times an end that the broker has lost was cut."),
}


class FollowMetrics:
    """The metrics of all followers of a process, in a registry of their own.

    Raises:
        UnsupportedFeatureError: the library is not installed.
    """

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as err:
            raise UnsupportedFeatureError(
                "metrics need prometheus-client: pip install prometheus-client, "
                f"extra metrics ({err})"
            ) from err
        self._progress = ClusterProgress({}, {})
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def update(self, progress: ClusterProgress) -> None:
        """Take what is shown from now on."""
        self._progress = progress

    def serve(self, address: Address) -> None:
        """Answer Prometheus at an address until the process ends.

        Raises:
            StoreStateError: the address cannot be listened on.
        """
        from prometheus_client import start_http_server

        try:
            start_http_server(address.port, address.host, self._registry)
        except OSError as err:
            raise StoreStateError(f"metrics cannot be served at {address}: {err}") from err

    def write(self, path: Path) -> None:
        """Replace a file, whose name should end in ``.prom``.

        Raises:
            OSError: it cannot be written.
        """
        from prometheus_client import write_to_textfile

        write_to_textfile(str(path), self._registry)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics; called by the library."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        copies, errors = self._progress
        up = GaugeMetricFamily(
            f"{_PREFIX}_up", "Whether the broker is followed; 0 after an error.", labels=["broker"]
        )
        for broker in sorted({*copies, *errors}):
            up.add_metric([broker], float(broker not in errors))
        families: list[Any] = [up]
        for kind, known in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, (field, text) in known.items():
                family = kind(f"{_PREFIX}_{name}", text, labels=["broker"])
                for broker, progress in copies.items():
                    family.add_metric([broker], float(getattr(progress, field)))
                families.append(family)
        answered = GaugeMetricFamily(
            f"{_PREFIX}_source_timestamp_seconds",
            "When the broker reported the end of its log the last time, epoch seconds.",
            labels=["broker"],
        )
        for broker, progress in copies.items():
            answered.add_metric([broker], progress.source_at / 1000)
        families.append(answered)
        return families
