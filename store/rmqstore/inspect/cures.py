"""How much a finding of a check matters, and what cures it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple, TypeAlias

Severity: TypeAlias = Literal["high", "medium", "low"]


class Cure(NamedTuple):
    """What findings about one part of a store mean, and what to do about them."""

    severity: Severity
    effect: str
    advice: str
    command: str  # has PATH where the store is named
    # What follows the first command, if that is not all, and the command for it.
    then: str = ""
    last_command: str = ""


_CURES = {
    "log": Cure(
        "high",
        "Records of the log are damaged or missing, so their messages cannot be read.",
        "Nothing brings their bytes back but a replica or a backup. A damaged end of the log can "
        "be cut off, which keeps a copy of what is cut:",
        "rmqstore rebuild PATH --truncate",
    ),
    "end": Cure(
        "high",
        "A broker that starts on this store ends the log there and loses these records.",
        "Before it starts, copy all messages out, these included:",
        "rmqstore export PATH messages.parquet --scan commitlog --all --ignore-log-end "
        "--mode DROPMALFORMED",
        "Then start the broker, or cut the log without it, which keeps a copy of what is cut:",
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
    "config": Cure(
        "medium",
        "A table of the broker is damaged. What depends on it comes from its backup, or is not "
        "known. Messages are not affected.",
        "A broker that starts reads the backup, the .bak file beside the table, and writes the "
        "table again. Without a sound backup it begins an empty table: see before it starts what "
        "is left of topics, groups and offsets:",
        "rmqstore describe PATH",
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
        part: ``log``, ``end``, ``queue``, ``index`` or ``config``, as in
            :class:`~rmqstore.errors.Finding`, or ``check`` for a check that could not be finished.
    """
    return _CURES[part]


def cures_of(parts: Collection[str]) -> dict[str, Cure]:
    """Return what cures findings about the parts of one store that have some.

    A log that records follow cannot be built from before it is cut.
    """
    cures = {part: cure_of(part) for part in parts}
    if "end" in cures:
        for part in ("queue", "index"):
            cures[part] = cure_of(part)._replace(
                advice="Once the records after the end of the log were copied out, the start of "
                "the broker mends this, and so does the command that cuts the log:",
                command=cures["end"].last_command,
            )
    return cures
