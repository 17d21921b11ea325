"""How much a finding of a check matters, and what cures it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Severity: TypeAlias = Literal["high", "medium", "low"]


class Cure(NamedTuple):
    """What findings about one part of a store mean, and what to do about them."""

    severity: Severity
    effect: str
    advice: str
    command: str  # has PATH where the store is named


_CURES = {
    "log": Cure(
        "high",
        "Records of the log are damaged or missing, so their messages cannot be read.",
        "Nothing brings their bytes back but a replica or a backup. A damaged end of the log can "
        "be cut off, which keeps a copy of what is cut:",
        "rmqstore rebuild PATH --truncate",
    ),
    "queue": Cure(
        "medium",
        "Consumers, and reads by queue, miss messages that the log has, or come upon wrong ones.",
        "A broker that starts after a crash mends this by itself. Without a broker, this builds "
        "the queues from the log:",
        "rmqstore rebuild PATH",
    ),
    "index": Cure(
        "low",
        "Queries by key miss messages. No message is affected otherwise.",
        "This builds the index from the log while no broker runs on the store:",
        "rmqstore rebuild PATH",
    ),
    "check": Cure(
        "medium",
        "The check ended early, so there may be more than is listed.",
        "Mend what it says, and check again:",
        "rmqstore verify PATH",
    ),
}


def cure_of(part: str) -> Cure:
    """Return what cures findings about a part of a store.

    Args:
        part: ``log``, ``queue`` or ``index``, as in :class:`~rmqstore.errors.Finding`, or
            ``check`` for a check that could not be finished.
    """
    return _CURES[part]
