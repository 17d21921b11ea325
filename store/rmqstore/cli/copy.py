"""The verbs that make copies of stores: copy, and follow for a live broker."""

from __future__ import annotations

import json
import signal
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

import click

from rmqstore.cli.common import ends_clearly, main, progress_bar, shows_progress, some_topics
from rmqstore.cli.output import Output, gives_findings, show_findings
from rmqstore.cli.stores import given_options, key_values, store_path
from rmqstore.copying.copier import copy
from rmqstore.copying.following.follower import follow, follow_status
from rmqstore.copying.following.settings import Acknowledge, FollowProgress, Start
from rmqstore.errors import BrokerUnreachableError, OptionError

_SECONDS: Final = 10.0  # between two lines of progress
_LOST: Final = 1
_OF_SIGNAL: Final = 128


@main.command("copy")
@store_path
@click.argument("target")
@click.option(
    "--target-option",
    "target_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=key_values,
    help="How to reach TARGET if it is a URI, such as region=eu-west-1; may be repeated.",
)
@click.option(
    "--since",
    help="Leave out the oldest files, whose messages were all stored before this time.",
)
@some_topics
@click.option(
    "--truncate",
    is_flag=True,
    help="Leave out good records that follow damage of a log that was not closed.",
)
@click.option("--no-verify", is_flag=True, help="Do not check the copy at the end.")
@shows_progress
@ends_clearly
@gives_findings
def copy_store(
    path: Path,
    target: str,
    target_options: dict[str, str],
    since: str | None,
    topics: tuple[str, ...],
    truncate: bool,
    no_verify: bool,
    output: Output,
) -> None:
    """Copy the store at PATH, which may be in use, to the new folder TARGET.

    The copy is a sound store that was closed. It grows in TARGET.partial; after an interruption the
    same command goes on. If TARGET is a URI, the store must be closed. --since and --topic leave
    out whole files and whole queues, never a part of the log. The exit code is 1 if the check of
    the copy finds damage.
    """
    given = given_options()
    if given.tiered is not None:
        raise OptionError("--tiered: tiered storage is not copied; leave it out")
    with progress_bar(f"copying {path}") as progress:
        copied = copy(
            path,
            target,
            since=since,
            topics=list(topics) or None,
            truncate=truncate,
            verify=not no_verify,
            progress=progress,
            storage_options=given.storage_options,
            target_options=target_options,
            **given.folders,
        )
    for text in copied.left_out:
        click.echo(f"left out: {text}", err=True)
    checked = "" if no_verify else f", {len(copied.findings)} findings"
    click.echo(f"{target}: {copied.n_files} files, {copied.n_bytes} bytes{checked}", err=True)
    show_findings(copied.findings, output)


class _Told:
    """Tells how far a copy is: every few seconds, and at its end."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._told_at = float("-inf")

    def tell_sometimes(self, progress: FollowProgress) -> None:
        """Tell it if the last time is a while ago."""
        if time.monotonic() - self._told_at >= _SECONDS:
            self.tell(progress)

    def tell(self, progress: FollowProgress) -> None:
        """Tell it."""
        self._told_at = time.monotonic()
        if self._as_json:
            click.echo(json.dumps(progress._asdict()))
            return
        click.echo(
            f"{progress.begin} to {progress.end}, {progress.bytes_behind} bytes and "
            f"{progress.seconds_behind:.1f} s behind, queues to {progress.queues_end}, "
            f"{progress.n_connections} connections, {progress.n_cuts} cuts",
            err=True,
        )


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[list[int]]:
    """Set an event at SIGINT and SIGTERM; yields the list that gets the number of the signal."""
    received: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, on_signal) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _tls(
    ca: str | None, certificate: str | None, key: str | None, *, any_host: bool
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as err:
        raise OptionError(f"--tls: a certificate or key cannot be used: {err}") from err
    if any_host:
        context.check_hostname = False
    return context


def _tell_status(target: str, *, as_json: bool) -> None:
    state, is_running = follow_status(target)
    if as_json:
        click.echo(json.dumps({**asdict(state), "is_running": is_running}))
        return
    behind = max(state.source_end - state.end, 0)
    what = "running" if is_running else "closed" if state.is_closed else "not closed properly"
    click.echo(f"broker {state.broker!r} of cluster {state.cluster!r} at {state.address}: {what}")
    click.echo(f"log from {state.begin} to {state.end}, queues to {state.built}")
    click.echo(
        f"{behind} bytes and {state.behind_seconds:.1f} s behind at {_time(state.updated_at)}"
    )
    click.echo(f"tables of {_time(state.tables_at)}")
    if "rocksdb" in state.store_type.lower():
        click.echo("the broker keeps its queues in RocksDB; the copy has them in files")
    if state.n_cuts:
        click.echo(
            f"{state.n_cuts} cuts; the last at {state.last_cut} on {_time(state.last_cut_at)}: "
            f"{state.last_cut_bytes} bytes, kept in {state.last_cut_kept}"
        )


def _time(epoch_ms: int) -> str:
    if not epoch_ms:
        return "never"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_ms / 1000))


@main.command("follow")
@click.argument("source")
@click.argument("target", required=False)
@click.option("--status", is_flag=True, help="Show how far the copy in the folder SOURCE is.")
@click.option("--once", is_flag=True, help="Stop at the end that the broker's log has now.")
@click.option("--until", type=click.IntRange(0), help="Stop at this physical offset.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "last-file"]),
    default="earliest",
    show_default=True,
    help="Where a new copy begins: with the broker's first file, or with its last one.",
)
@click.option(
    "--ack",
    "acknowledge",
    type=click.Choice(["never", "synced"]),
    default="never",
    show_default=True,
    help="synced: acknowledge what is on the disk, as a replica for which producers may wait.",
)
@click.option(
    "--allow-sync-master",
    is_flag=True,
    help="Follow a SYNC_MASTER of RocketMQ 4, whose producers may have to wait.",
)
@click.option("--no-loop", is_flag=True, help="Exit with 1 if the connection ends.")
@click.option("--max-rate", type=click.IntRange(1), help="Bytes a second at most.")
@click.option("--ha-address", metavar="HOST:PORT", help="Where the broker serves its replicas.")
@click.option(
    "--tables-interval",
    "tables_seconds",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds between two looks at topics, groups and offsets; 0 for one look.",
)
@click.option("--access-key", help="A user of the broker; it needs no rights.")
@click.option(
    "--secret-key-file",
    "secret_key",
    type=click.File("r"),
    help="A file with the secret of the access key.",
)
@click.option("--tls", "with_tls", is_flag=True, help="TLS on the broker's ordinary port.")
@click.option("--tls-ca", type=click.Path(), help="Certificates that are trusted.")
@click.option("--tls-cert", type=click.Path(), help="A certificate to show to the broker.")
@click.option("--tls-key", type=click.Path(), help="The key of --tls-cert.")
@click.option("--tls-any-host", is_flag=True, help="Accept a certificate of another host name.")
@click.option("--json", "as_json", is_flag=True, help="Progress as JSON Lines on stdout.")
@ends_clearly
def follow_broker(
    source: str,
    target: str | None,
    *,
    status: bool,
    once: bool,
    until: int | None,
    start: Start,
    acknowledge: Acknowledge,
    allow_sync_master: bool,
    no_loop: bool,
    max_rate: int | None,
    ha_address: str | None,
    tables_seconds: float,
    access_key: str | None,
    secret_key: TextIO | None,
    with_tls: bool,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_any_host: bool,
    as_json: bool,
) -> None:
    """Keep an exact copy of a live broker's log in the folder TARGET.

    SOURCE is the broker's ordinary port, HOST:10911. The log comes from the port that serves its
    replicas. The copy is a store that can be read while it grows. The same command goes on with
    a copy. SIGINT and SIGTERM end it with a store that is closed.
    """
    if status:
        if target is not None:
            raise click.UsageError("--status takes one folder")
        _tell_status(source, as_json=as_json)
        return
    if target is None:
        raise click.UsageError("name the folder TARGET")
    tls = None
    if tls_key and not tls_cert:
        raise OptionError("--tls-key: needs --tls-cert")
    if tls_any_host and not (with_tls or tls_ca or tls_cert):
        raise OptionError("--tls-any-host: needs --tls")
    if with_tls or tls_ca or tls_cert:
        tls = _tls(tls_ca, tls_cert, tls_key, any_host=tls_any_host)
    stop, told = threading.Event(), _Told(as_json=as_json)
    with _stopped_by_signals(stop) as received:
        try:
            progress = follow(
                source,
                target,
                once=once,
                until=until,
                start=start,
                acknowledge=acknowledge,
                allow_sync_master=allow_sync_master,
                reconnect=not no_loop,
                max_rate=max_rate,
                ha_address=ha_address,
                tables_seconds=tables_seconds,
                access_key=access_key,
                secret_key=None if secret_key is None else secret_key.read().strip(),
                tls=tls,
                stop=stop,
                progress=told.tell_sometimes,
            )
        except BrokerUnreachableError as err:
            click.echo(f"lost: {err}", err=True)
            sys.exit(_LOST)
    told.tell(progress)
    if received:
        sys.exit(_OF_SIGNAL + received[0])
