"""What followers noted of their copies, told to people and programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

import click

from rmqstore.cli.common import USAGE
from rmqstore.errors import StoreStateError
from rmqstore.replica.progress import copies_in, follow_status
from rmqstore.replica.state import FollowState


def tell_status(target: str, *, as_json: bool) -> None:
    """Tell of a copy, or of each copy in a folder; exits with 2 if one of them is damaged."""
    damaged = []
    for name, path in copies_in(target).items():
        try:
            state, is_running = follow_status(path)
        except StoreStateError as err:
            if not name:
                raise
            damaged.append(name)
            if as_json:
                click.echo(json.dumps({"copy": name, "error": str(err)}))
            else:
                click.echo(f"{name}: error: {err}", err=True)
            continue
        is_known = bool(state.source_at)  # not where only the port for replicas was asked
        behind = max(state.source_end - state.end, 0) if is_known else None
        if as_json:
            named = {"copy": name} if name else {}
            told = {**asdict(state), "bytes_behind": behind, "is_running": is_running}
            click.echo(json.dumps(named | told))
        else:
            for line in _status_lines(state, behind, is_running=is_running):
                click.echo(f"{name}: {line}" if name else line)
    if damaged:
        sys.exit(USAGE)


def _status_lines(state: FollowState, behind: int | None, *, is_running: bool) -> Iterator[str]:
    what = "running" if is_running else "closed" if state.is_closed else "not closed properly"
    name = f"broker {state.broker!r} of cluster {state.cluster!r}"
    if not state.broker:
        name = "a broker that did not tell its name,"
    yield f"{name} at {state.address}: {what}"
    yield f"log from {state.begin} to {state.end}, queues to {max(state.built, state.begin)}"
    if not state.builds_queues:
        yield "queues and index are not built any further (--no-queues)"
    if behind is None:
        yield f"how far behind is not known; as of {_time(state.updated_at)}"
    else:
        yield (
            f"{behind} bytes and {state.behind_seconds:.1f} s behind at {_time(state.updated_at)}; "
            f"the broker answered at {_time(state.source_at)}"
        )
    yield f"tables of {_time(state.tables_at)}"
    if state.mode == "controller":
        yield f"controller mode: epoch {state.epoch}, confirm offset {state.confirm_offset}"
    if "rocksdb" in state.store_type.lower():
        yield "the broker keeps its queues in RocksDB; the copy has them in files"
    if state.n_cuts:
        yield (
            f"cuts: {state.n_cuts}; the last at {state.last_cut} on {_time(state.last_cut_at)}: "
            f"{state.last_cut_bytes} bytes, kept in {state.last_cut_kept}"
        )


def _time(epoch_ms: int) -> str:
    if not epoch_ms:
        return "never"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_ms / 1000))
