"""View ``epochs``: which part of the log each master of a broker in controller mode wrote.

Two replicas of a broker can be compared by it: they agree up to the end of the last epoch that both
have with the same start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from rmqstore.errors import CorruptConfigError
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.rows import Row
from rmqstore.read.views.schema import ViewSpec
from rmqstore.storage.broker.broker_run import OPEN, state_of
from rmqstore.storage.broker.epochs import Epoch, read_epochs

logger = logging.getLogger(__name__)


def epoch_rows(source: StoreParts, _spec: ViewSpec, _names: Sequence[Any]) -> Iterator[Row]:
    """Yield a row for each epoch, rising, or one that says why the epochs cannot be read."""
    try:
        epochs, log_end = find_epochs(source)
    except CorruptConfigError as err:
        yield {"reason": str(err)}
        return
    if not epochs:
        return
    starts = [epoch.start_offset for epoch in epochs]
    ends = [*(min(start, log_end) for start in starts[1:]), log_end]
    for epoch, end_offset in zip(epochs, ends, strict=True):
        yield {
            "epoch": epoch.number,
            "startOffset": epoch.start_offset,
            "endOffset": max(end_offset, epoch.start_offset),
            "reason": why_not_of_log(epoch, log_end),
        }


def find_epochs(source: StoreParts) -> tuple[list[Epoch], int]:
    """Return the epochs of a store, rising, and the physical offset where its log ends.

    Logs a warning if the broker ran in controller mode, and its epochs are not there.

    Raises:
        CorruptConfigError: the file of the epochs and its backup are damaged.
    """
    paths = source.paths
    epochs = read_epochs(paths)
    if not epochs and paths.storage.exists(paths.broker_identity):
        logger.warning(
            "%s: the broker ran in controller mode (%s), but there is no %s: its epochs are not "
            "known",
            paths.root,
            paths.broker_identity.name,
            paths.epochs.name,
        )
    log_end = source.ends.end_of_records()
    if epochs and state_of(paths) == OPEN:
        # A running broker may have written more since its log was looked at.
        log_end = max(log_end, epochs[-1].start_offset)
    return epochs, log_end


def why_not_of_log(epoch: Epoch, log_end: int) -> str | None:
    """Return in words that an epoch lies behind the end of the log, None if it does not."""
    if epoch.start_offset <= log_end:
        return None
    return f"it starts at {epoch.start_offset}, after the end of the log at {log_end}"
