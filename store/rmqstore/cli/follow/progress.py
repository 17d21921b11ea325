"""How far copies are, told while they are made."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any, Final

import click

from rmqstore.errors import RmqStoreError
from rmqstore.replica.cluster import ClusterProgress
from rmqstore.replica.metrics import FollowMetrics
from rmqstore.replica.progress import FollowProgress

logger = logging.getLogger(__name__)

_SECONDS: Final = 10.0  # between two lines of progress


class Told:
    """Tells how far copies are: every few seconds, and at the end; metrics are told each time."""

    def __init__(self, *, as_json: bool, metrics: FollowMetrics | None, file: Path | None) -> None:
        self._as_json, self._metrics, self._file = as_json, metrics, file
        self._told_at = float("-inf")
        self._last = ClusterProgress({}, {})
        self._why = ""

    def tell_one(self, progress: FollowProgress, broker: str) -> None:
        """Tell of one broker, if the last time is a while ago."""
        self.tell_all(ClusterProgress({broker: progress}, {}), with_names=False)

    def tell_all(self, progress: ClusterProgress, *, with_names: bool = True) -> None:
        """Tell of all brokers, if the last time is a while ago."""
        self._last = progress
        if self._metrics is not None:
            self._metrics.update(progress)
        if time.monotonic() - self._told_at >= _SECONDS and any(progress):
            self.tell(progress, with_names=with_names)

    def tell(self, progress: ClusterProgress, *, with_names: bool) -> None:
        """Tell it, and write the file of metrics."""
        self._told_at = time.monotonic()
        self._write_metrics(progress)
        for broker in sorted({*progress.copies, *progress.errors}):
            known, error = progress.copies.get(broker), progress.errors.get(broker)
            if self._as_json:
                named: dict[str, Any] = {"broker": broker} if with_names else {}
                of_error = {} if error is None else {"error": error}
                click.echo(json.dumps(named | (known._asdict() if known else {}) | of_error))
                continue
            prefix = f"{broker}: " if with_names else ""
            if error is not None:
                click.echo(f"{prefix}error: {error}", err=True)
            elif known is not None:
                click.echo(f"{prefix}{_line(known)}", err=True)

    def end_with(self, error: RmqStoreError, broker: str | None) -> None:
        """Let the file of metrics say that everything ended with an error.

        Args:
            error: what ended it.
            broker: the only one, None of many, whose errors were told before.
        """
        copies = {
            name: each._replace(is_connected=False) for name, each in self._last.copies.items()
        }
        errors = self._last.errors if broker is None else {broker: str(error)}
        self._write_metrics(ClusterProgress(copies, errors))

    def _write_metrics(self, progress: ClusterProgress) -> None:
        """Write the file of metrics; if that fails, the copies go on."""
        if self._metrics is None:
            return
        self._metrics.update(progress)
        if self._file is None:
            return
        try:
            self._metrics.write(self._file)
            self._why = ""
        except OSError as err:
            why = err.strerror or str(err)
            if why != self._why:
                logger.warning("%s: metrics are not written: %s", self._file, why)
            self._why = why


def _line(progress: FollowProgress) -> str:
    if not progress.source_at and not progress.n_connections:
        return "the broker has not answered yet"
    behind = f"{progress.bytes_behind} bytes and {progress.seconds_behind:.1f} s behind"
    if not progress.source_at:  # only the port for replicas is asked
        behind = "how far behind is not known"
    return (
        f"{progress.begin} to {progress.end}, {behind}, queues to {progress.queues_end}, "
        f"connections: {progress.n_connections}, cuts: {progress.n_cuts}"
    )
