"""Checks the epochs of a broker in controller mode against its log."""

from __future__ import annotations

from collections.abc import Iterator

from rmqstore.errors import CorruptConfigError, Finding, NotPermittedError
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.epochs import find_epochs, why_not_of_log
from rmqstore.storage.broker.epochs import why_not_started


def epoch_findings(parts: StoreParts) -> Iterator[Finding]:
    """Yield the damage of the epochs, and those that start after the end of the log.

    Raises:
        NotPermittedError: their file may not be read by this user.
    """
    damage = why_not_started(parts.paths)
    if damage is not None:
        text = f"{damage.reason}: a broker in controller mode does not start"
        place = f"{damage.path}, {damage.offset}"
        yield Finding("config", place, text, "epochfile", stops_broker=True)
    try:
        epochs, log_end = find_epochs(parts)
    except CorruptConfigError as err:
        if isinstance(err.__cause__, NotPermittedError):
            raise err.__cause__ from None
        if damage is None or damage.path != err.path:
            yield Finding("config", f"{err.path}, {err.offset}", err.reason)
        return
    for epoch in epochs:
        reason = why_not_of_log(epoch, log_end)
        if reason is not None:
            place = f"{parts.paths.epochs}, epoch {epoch.number}"
            yield Finding("config", place, reason, "epochs")
