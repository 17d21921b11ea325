"""How a broker is followed, and how long each step may take."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from rmqstore.errors import OptionError
from rmqstore.remoting import Address, Credentials
from rmqstore.replica.agreement import OVERLAP_BYTES
from rmqstore.replica.retention import FOREVER, Retention, parse_retention

Start = Literal["earliest", "last-file"] | int
Acknowledge = Literal["never", "synced"]
OnGap = Literal["fail", "restart"]


class FollowArguments(TypedDict, total=False):
    """The keyword arguments of :func:`rmqstore.follow` that are the same for every broker.

    The defaults are those of :class:`FollowSettings`.
    """

    once: bool
    start: Start
    acknowledge: Acknowledge
    allow_sync_master: bool
    reconnect: bool
    max_rate: int | None
    build_queues: bool
    tables_seconds: float
    sync_seconds: float
    sync_bytes: int
    retain: str | Sequence[str]
    keep_for: Sequence[str | os.PathLike[str]]
    on_gap: OnGap
    access_key: str | None
    secret_key: str | None
    security_token: str | None
    tls: ssl.SSLContext | None
    stop: threading.Event | None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds.

    Attributes:
        pause: between two connections. It is longer than a producer waits for a replica, so that a
            request, which a broker takes for an acknowledgement, releases nobody twice.
        report: between two reports; a broker closes a connection that is silent for 20 s.
        first_header: until the broker has answered a request; an idle one does after 5 s.
        silence: without a byte, after which the connection is given up.
        stall: that the copy may take for what came, after which the connection is given up: as long
            as it reports, the broker keeps the files that it is sending.
        poll: that a read waits at most.
        bounds: between two requests for where the log of the broker ends.
        tables: at least, between two requests for its tables.
        last_answer: that the end of a follower waits for the broker to say what a topic is.
        retention: between two searches for files to delete.
    """

    pause: float = 5.0
    report: float = 4.0
    first_header: float = 15.0
    silence: float = 20.0
    stall: float = 10.0
    poll: float = 0.1
    bounds: float = 10.0
    tables: float = 1.0
    last_answer: float = 5.0
    retention: float = 30.0

    def adapted(self, heartbeat: float, housekeeping: float) -> Timing:
        """Return the times that suit a broker.

        Args:
            heartbeat: seconds after which an idle broker sends a heartbeat.
            housekeeping: seconds after which it closes a connection that has not reported.
        """
        return replace(
            self,
            report=min(self.report, housekeeping / 4),
            stall=min(self.stall, housekeeping / 2),
            first_header=max(self.first_header, 3 * heartbeat),
            silence=max(self.silence, 3 * heartbeat),
        )


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """What :func:`rmqstore.follow` was asked for; see there."""

    once: bool = False
    until: int | None = None
    start: Start = "earliest"
    acknowledge: Acknowledge = "never"
    allow_sync_master: bool = False
    reconnect: bool = True
    max_rate: int | None = None
    ha_address: Address | None = None
    build_queues: bool = True
    tables_seconds: float = 60.0
    retention: Retention = field(default_factory=Retention)
    keep_for: tuple[Path, ...] = ()
    on_gap: OnGap = "fail"
    sync_seconds: float = 1.0
    sync_bytes: int = 64 << 20
    overlap: int = OVERLAP_BYTES
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        is_offset = isinstance(self.start, int) and self.start >= 0
        if not is_offset and self.start not in ("earliest", "last-file"):
            raise OptionError(
                f"`start` {self.start!r}: must be earliest, last-file or a physical offset"
            )
        if self.on_gap not in ("fail", "restart"):
            raise OptionError(f"`on_gap` {self.on_gap!r}: must be fail or restart")
        if self.keep_for and self.retention.is_forever:
            raise OptionError("`keep_for`: needs `retain`")
        if self.acknowledge not in ("never", "synced"):
            raise OptionError(f"`acknowledge` {self.acknowledge!r}: must be never or synced")
        if self.max_rate is not None and self.max_rate < 1:
            raise OptionError(f"`max_rate` {self.max_rate}: must be a positive number of bytes")
        if not self.sync_seconds > 0:  # not a number, too
            raise OptionError(f"`sync_seconds` {self.sync_seconds}: must be positive")
        if self.sync_bytes < 1:
            raise OptionError(f"`sync_bytes` {self.sync_bytes}: must be positive")
        if self.until is not None and self.until < 0:
            raise OptionError(f"`until` {self.until}: must not be negative")
        least = self.timing.tables
        if self.tables_seconds and not self.tables_seconds >= least:  # not a number, too
            raise OptionError(
                f"`tables_seconds` {self.tables_seconds}: must be 0, or at least {least:g} seconds"
            )


def settings_of(
    arguments: FollowArguments, *, until: int | None = None, ha_address: str | None = None
) -> FollowSettings:
    """Return the settings that arguments of :func:`rmqstore.follow` stand for.

    Raises:
        OptionError: an argument means nothing.
    """
    # The others are no settings, or have another form there.
    same = FollowArguments.__optional_keys__ & {one.name for one in fields(FollowSettings)}
    given: dict[str, Any] = {name: value for name, value in arguments.items() if name in same}
    given["keep_for"] = tuple(map(Path, arguments.get("keep_for", ())))
    return FollowSettings(
        until=until,
        ha_address=None if ha_address is None else Address.parse(ha_address),
        retention=parse_retention(arguments.get("retain", FOREVER)),
        **given,
    )


def credentials_of(arguments: FollowArguments) -> Credentials | None:
    """Return who asks, None if no access key is given.

    Raises:
        OptionError: the access key or its secret is missing.
    """
    access_key, secret_key = arguments.get("access_key"), arguments.get("secret_key")
    if access_key is not None and secret_key is not None:
        return Credentials(access_key, secret_key, arguments.get("security_token"))
    if access_key is not None or secret_key is not None:
        raise OptionError("`access_key` and `secret_key`: give both")
    return None
