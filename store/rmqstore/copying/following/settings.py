"""How a broker is followed, and how long each step may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rmqstore.copying.following.agreement import OVERLAP_BYTES
from rmqstore.copying.following.remoting.client import Address
from rmqstore.errors import OptionError, about

Start = Literal["earliest", "last-file"]
Acknowledge = Literal["never", "synced"]


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
        bounds: between two looks at where the log of the broker ends.
    """

    pause: float = 5.0
    report: float = 4.0
    first_header: float = 15.0
    silence: float = 20.0
    stall: float = 10.0
    poll: float = 0.1
    bounds: float = 10.0


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
    tables_seconds: float = 60.0
    sync_seconds: float = 1.0
    sync_bytes: int = 64 << 20
    overlap: int = OVERLAP_BYTES
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        if self.start not in ("earliest", "last-file"):
            raise OptionError(about("start", f" {self.start!r}: must be earliest or last-file"))
        if self.acknowledge not in ("never", "synced"):
            raise OptionError(
                about("acknowledge", f" {self.acknowledge!r}: must be never or synced")
            )
        if self.max_rate is not None and self.max_rate < 1:
            raise OptionError(
                about("max_rate", f" {self.max_rate}: must be a positive number of bytes")
            )
        if self.until is not None and self.until < 0:
            raise OptionError(about("until", f" {self.until}: must not be negative"))
        if self.tables_seconds < 0:
            raise OptionError(
                about("tables_seconds", f" {self.tables_seconds}: must not be negative")
            )


class FollowProgress(NamedTuple):
    """How far a copy is.

    Attributes:
        begin: physical offset where the copy begins.
        end: physical offset after the last record that is on the disk.
        source_end: where the log of the broker ended when it was last asked.
        bytes_behind: what the copy lacks, as far as is known.
        seconds_behind: how old the newest record of the copy is; 0 if nothing is lacking.
        queues_end: physical offset up to which queues and index are built.
        n_connections: connections so far.
        n_cuts: how many times an end of the copy was cut because the broker does not have it.
    """

    begin: int
    end: int
    source_end: int
    bytes_behind: int
    seconds_behind: float
    queues_end: int
    n_connections: int
    n_cuts: int
