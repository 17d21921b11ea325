"""How far a copy is."""

from __future__ import annotations

from typing import NamedTuple

from rmqstore.copying.following.background import Metadata
from rmqstore.copying.following.copy_store import CopyStore


class FollowProgress(NamedTuple):
    """How far a copy is.

    Attributes:
        begin: physical offset where the copy begins.
        end: physical offset after the last record that is on the disk.
        source_end: where the log of the broker ended when it was last asked.
        bytes_behind: what the copy lacks, as far as is known.
        seconds_behind: how old the newest record of the copy is; 0 if nothing is lacking.
        queues_end: physical offset up to which queues and index are built; it stays where it is
            while they are not.
        n_connections: connections so far.
        n_cuts: how many times an end of the copy was cut because the broker does not have it.
        source_at: when the broker told that the last time, epoch ms; 0 if it has not.
        is_connected: whether bytes of its log are being received.
    """

    begin: int
    end: int
    source_end: int
    bytes_behind: int
    seconds_behind: float
    queues_end: int
    n_connections: int
    n_cuts: int
    source_at: int = 0
    is_connected: bool = False


def progress_of(store: CopyStore, metadata: Metadata, *, is_connected: bool) -> FollowProgress:
    """Return how far a copy is.

    Args:
        store: the copy.
        metadata: what the broker told.
        is_connected: whether bytes of its log are being received.
    """
    state = store.state
    if state is None:
        return FollowProgress(0, 0, 0, 0, 0.0, 0, 0, 0)
    if not store.is_open:  # the broker has not answered yet
        high = max(state.source_end, state.end)
        return FollowProgress(
            state.begin, state.end, high, high - state.end, state.behind_seconds, state.built,
            0, state.n_cuts, state.source_at,
        )  # fmt: skip
    end, high = store.log.durable_end, max(metadata.bounds.high, store.log.end)
    return FollowProgress(
        state.begin,
        end,
        high,
        high - end,
        store.seconds_behind(),
        store.built,
        state.n_connections,
        state.n_cuts,
        metadata.answered_at,
        is_connected,
    )
