"""The verb that follows live brokers."""

from __future__ import annotations

import json
import logging
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from os import environ
from pathlib import Path
from typing import Any, Final, TextIO, cast

import click

from rmqstore.cli.common import USAGE, ends_clearly, stopped_by_signals
from rmqstore.cli.verbs import main
from rmqstore.errors import BrokerUnreachableError, OptionError, RmqStoreError, StoreStateError
from rmqstore.remoting import Address
from rmqstore.replica.cluster import ClusterProgress, FollowMetrics, follow, follow_cluster
from rmqstore.replica.settings import (
    Acknowledge,
    FollowArguments,
    OnGap,
    Start,
)
from rmqstore.replica.state import FollowProgress, FollowState, copies_in, follow_status

logger = logging.getLogger(__name__)

_SECONDS: Final = 10.0  # between two lines of progress

_LOST: Final = 1
_OF_SIGNAL: Final = 128
_SECRET_VARIABLE: Final = "ROCKETMQ_SECRET_KEY"  # noqa: S105 - a name


def tell_status(target: str, *, as_json: bool) -> None:
    """Report on a copy, or on each copy in a folder; exits with 2 if one of them is damaged."""
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
        is_known = bool(state.source_at)  # not before the broker has answered
        behind = max(state.source_end - state.end, 0) if is_known else None
        if as_json:
            named = {"copy": name} if name else {}
            status = {**asdict(state), "bytes_behind": behind, "is_running": is_running}
            click.echo(json.dumps(named | status))
        else:
            for line in _status_lines(state, behind, is_running=is_running):
                click.echo(f"{name}: {line}" if name else line)
    if damaged:
        sys.exit(USAGE)


def _status_lines(state: FollowState, behind: int | None, *, is_running: bool) -> Iterator[str]:
    what = "running" if is_running else "closed" if state.is_closed else "not closed properly"
    yield f"broker {state.broker!r} of cluster {state.cluster!r} at {state.address}: {what}"
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


class Report:
    """Reports how far copies are: every few seconds, and at the end; metrics each time."""

    def __init__(self, *, as_json: bool, metrics: FollowMetrics | None, file: Path | None) -> None:
        self._as_json, self._metrics, self._file = as_json, metrics, file
        self._reported_at = float("-inf")
        self._last = ClusterProgress({}, {})
        self._why = ""

    def report_one(self, progress: FollowProgress, broker: str) -> None:
        """Report on one broker, if the last time is a while ago."""
        self.report_all(ClusterProgress({broker: progress}, {}), with_names=False)

    def report_all(self, progress: ClusterProgress, *, with_names: bool = True) -> None:
        """Report on all brokers, if the last time is a while ago."""
        self._last = progress
        if self._metrics is not None:
            self._metrics.update(progress)
        if time.monotonic() - self._reported_at >= _SECONDS and any(progress):
            self.report(progress, with_names=with_names)

    def report(self, progress: ClusterProgress, *, with_names: bool) -> None:
        """Report it, and write the file of metrics."""
        self._reported_at = time.monotonic()
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
            elif known is not None and known.source_at:
                text = (
                    f"{known.begin} to {known.end}, {known.bytes_behind} bytes and "
                    f"{known.seconds_behind:.1f} s behind, queues to {known.queues_end}, "
                    f"connections: {known.n_connections}, cuts: {known.n_cuts}"
                )
                click.echo(f"{prefix}{text}", err=True)
            elif known is not None:
                click.echo(f"{prefix}the broker has not answered yet", err=True)

    def end_with(self, error: RmqStoreError, broker: str | None) -> None:
        """Let the file of metrics say that everything ended with an error.

        Args:
            error: what ended it.
            broker: the only one, None of many, whose errors were reported before.
        """
        copies = {
            name: each._replace(is_connected=False) for name, each in self._last.copies.items()
        }
        errors = self._last.errors if broker is None else {broker: str(error)}
        self._write_metrics(ClusterProgress(copies, errors))

    def _write_metrics(self, progress: ClusterProgress) -> None:
        """Write the file of metrics; if that fails, the copies continue."""
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


def _start(_context: click.Context, _option: click.Parameter, value: str) -> Start:
    """Return where a new copy begins; a word is checked where it is used."""
    return int(value) if value.isdecimal() else cast("Start", value)


@main.command("follow")
@click.argument("source")
@click.argument("target", required=False)
@click.option("--status", is_flag=True, help="Show how far the copies in the folder SOURCE are.")
@click.option(
    "--namesrv",
    metavar="HOST:PORT[;HOST:PORT]",
    help="Follow all brokers that these name servers know, into folders by their names.",
)
@click.option("--cluster", help="Only the brokers of this cluster.")
@click.option("--prefer-slave", is_flag=True, help="Follow a slave of each broker that has one.")
@click.option("--once", is_flag=True, help="Stop at the end that the broker's log has now.")
@click.option("--until", type=click.IntRange(0), help="Stop at this physical offset.")
@click.option(
    "--from",
    "start",
    metavar="earliest|last-file|OFFSET",
    callback=_start,
    default="earliest",
    show_default=True,
    help="Where a new copy begins: with the broker's first file, its last one, or the one that "
    "holds a physical offset.",
)
@click.option(
    "--retain",
    multiple=True,
    help="How long files of the log stay: forever (default), mirror, an age (30d) or a size "
    "(500GB); may be repeated.",
)
@click.option(
    "--keep-for",
    metavar="CHECKPOINT",
    type=click.Path(),
    multiple=True,
    help="Keep what the streaming query of this checkpoint has not read; may be repeated.",
)
@click.option(
    "--on-gap",
    type=click.Choice(["fail", "restart"]),
    default="fail",
    show_default=True,
    help="If the broker has deleted what comes next. restart: rename the copy and begin a new one.",
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
@click.option("--max-rate", type=click.IntRange(1), help="Bytes a second at most, by broker.")
@click.option("--ha-address", metavar="HOST:PORT", help="Where the broker serves its replicas.")
@click.option(
    "--queues/--no-queues",
    "build_queues",
    default=True,
    show_default=True,
    help="Build queues and index. Without them, readers find messages by reading the log.",
)
@click.option(
    "--tables-interval",
    "tables_seconds",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds between two looks at topics, groups and offsets, at least 1; 0 for one look.",
)
@click.option(
    "--sync-interval",
    "sync_seconds",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds after which what came has to be on the disk.",
)
@click.option(
    "--sync-bytes",
    type=click.IntRange(1),
    default=64 << 20,
    show_default=True,
    help="Bytes after which what came has to be on the disk.",
)
@click.option("--access-key", help="A user of the broker; it needs no rights.")
@click.option(
    "--secret-key-file",
    "secret_key",
    type=click.File("r"),
    help=f"A file with the secret of the access key; else it is in {_SECRET_VARIABLE}.",
)
@click.option("--tls", "with_tls", is_flag=True, help="TLS on the broker's listen port.")
@click.option("--tls-ca", type=click.Path(), help="Certificates that are trusted.")
@click.option("--tls-cert", type=click.Path(), help="A certificate to show to the broker.")
@click.option("--tls-key", type=click.Path(), help="The key of --tls-cert.")
@click.option("--tls-any-host", is_flag=True, help="Accept a certificate of another host name.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus here.")
@click.option(
    "--metrics-file", type=click.Path(path_type=Path), help="Write metrics to this file, *.prom."
)
@click.option("--json", "as_json", is_flag=True, help="Progress as JSON Lines on stdout.")
@ends_clearly
def follow_brokers(
    source: str,
    target: str | None,
    *,
    status: bool,
    namesrv: str | None,
    cluster: str | None,
    prefer_slave: bool,
    once: bool,
    until: int | None,
    start: Start,
    retain: tuple[str, ...],
    keep_for: tuple[str, ...],
    on_gap: OnGap,
    acknowledge: Acknowledge,
    allow_sync_master: bool,
    no_loop: bool,
    max_rate: int | None,
    ha_address: str | None,
    build_queues: bool,
    tables_seconds: float,
    sync_seconds: float,
    sync_bytes: int,
    access_key: str | None,
    secret_key: TextIO | None,
    with_tls: bool,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_any_host: bool,
    metrics: str | None,
    metrics_file: Path | None,
    as_json: bool,
) -> None:
    """Keep an exact copy of a live broker's log in the folder TARGET.

    SOURCE is the broker's listen port, HOST:10911. The log comes from the port that serves its
    replicas. The copy is a store that can be read while it grows. The same command continues a
    copy. SIGINT and SIGTERM end it with a store that is closed. With --namesrv the only argument
    is the folder, which gets a copy of each broker.
    """
    _require_folders(target, namesrv, status=status)
    if status:
        tell_status(source, as_json=as_json)
        return
    _require_fitting(
        namesrv,
        of_one={
            "--until": until,
            "--ha-address": ha_address,
        },
        of_many={"--cluster": cluster, "--prefer-slave": prefer_slave or None},
    )
    arguments: FollowArguments = {
        "once": once,
        "start": start,
        "retain": retain,
        "keep_for": keep_for,
        "on_gap": on_gap,
        "acknowledge": acknowledge,
        "allow_sync_master": allow_sync_master,
        "reconnect": not no_loop,
        "max_rate": max_rate,
        "build_queues": build_queues,
        "tables_seconds": tables_seconds,
        "sync_seconds": sync_seconds,
        "sync_bytes": sync_bytes,
        "access_key": access_key,
        "secret_key": _secret(access_key, secret_key),
        "tls": _tls(with_tls, tls_ca, tls_cert, tls_key, any_host=tls_any_host),
        "stop": (stop := threading.Event()),
    }
    report = Report(as_json=as_json, metrics=_metrics_of(metrics, metrics_file), file=metrics_file)
    broker = source if namesrv is None else None
    with stopped_by_signals(stop) as received, _ends_reported(report, broker):
        if target is None:
            assert namesrv is not None
            progress = follow_cluster(
                namesrv,
                source,
                cluster=cluster,
                prefer_slave=prefer_slave,
                progress=report.report_all,
                **arguments,
            )
        else:
            copy = follow(
                source,
                target,
                until=until,
                ha_address=ha_address,
                progress=lambda progress: report.report_one(progress, source),
                **arguments,
            )
            progress = ClusterProgress({source: copy}, {})
    report.report(progress, with_names=namesrv is not None)
    if received:
        sys.exit(_OF_SIGNAL + received[0])


@contextmanager
def _ends_reported(report: Report, broker: str | None) -> Iterator[None]:
    """Let metrics show an error, and exit with 1 if a broker was lost."""
    try:
        yield
    except BrokerUnreachableError as err:
        report.end_with(err, broker)
        click.echo(f"lost: {err}", err=True)
        sys.exit(_LOST)
    except RmqStoreError as err:
        report.end_with(err, broker)
        raise


def _require_folders(target: str | None, namesrv: str | None, *, status: bool) -> None:
    """Refuse a second folder where there is one, and a broker without a folder."""
    if target is None:
        if namesrv is None and not status:
            raise click.UsageError("name the folder TARGET")
    elif status:
        raise click.UsageError("--status takes one folder")
    elif namesrv is not None:
        raise click.UsageError("--namesrv takes one folder")


def _require_fitting(
    namesrv: str | None, *, of_one: dict[str, object], of_many: dict[str, object]
) -> None:
    """Refuse options that are of one broker only, or of many."""
    for name, value in (of_one if namesrv is not None else of_many).items():
        if value is not None:
            how = "with" if namesrv is not None else "without"
            raise OptionError(f"{name}: cannot be used {how} --namesrv")


def _metrics_of(address: str | None, file: Path | None) -> FollowMetrics | None:
    if address is None and file is None:
        return None
    metrics = FollowMetrics()
    if address is not None:
        metrics.serve(Address.parse(address))
    if file is not None:
        try:
            metrics.write(file)
        except OSError as err:
            raise OptionError(
                f"--metrics-file {file}: cannot be written: {err.strerror or err}"
            ) from err
    return metrics


def _secret(access_key: str | None, file: TextIO | None) -> str | None:
    """Return the secret of an access key, from a file or the environment."""
    if file is not None:
        return file.read().strip()
    return None if access_key is None else environ.get(_SECRET_VARIABLE)


def _tls(
    with_tls: bool,
    ca: str | None,
    certificate: str | None,
    key: str | None,
    *,
    any_host: bool,
) -> ssl.SSLContext | None:
    """Return the settings of TLS, None for plain text."""
    if key and not certificate:
        raise OptionError("--tls-key: needs --tls-cert")
    if not (with_tls or ca or certificate):
        if any_host:
            raise OptionError("--tls-any-host: needs --tls")
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as err:
        raise OptionError(f"--tls: a certificate or key cannot be used: {err}") from err
    if any_host:
        context.check_hostname = False
    return context
