"""The verb that follows live brokers."""

from __future__ import annotations

import json
import logging
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import environ
from pathlib import Path
from typing import Any, Final, TextIO, cast, get_args

import click

from rmqstore.cli.common import USAGE, ends_clearly, stopped_by_signals
from rmqstore.cli.options import POSITIVE, REPEATED, Flag, options
from rmqstore.cli.parameters import negated
from rmqstore.cli.verbs import main
from rmqstore.errors import BrokerUnreachableError, OptionError, RmqStoreError, StoreStateError
from rmqstore.remoting import Address
from rmqstore.replica.cluster import ClusterProgress, FollowMetrics, follow, follow_cluster
from rmqstore.replica.settings import Acknowledge, FollowArguments, FollowSettings, OnGap, Start
from rmqstore.replica.state import FollowState, copies_in, follow_status

logger = logging.getLogger(__name__)

_SECONDS: Final = 10.0  # between two lines of progress

_LOST: Final = 1
_OF_SIGNAL: Final = 128
_SECRET_VARIABLE: Final = "ROCKETMQ_SECRET_KEY"  # noqa: S105 - a name


def show_status(target: str, *, as_json: bool) -> None:
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
        # It is not known before the broker has answered.
        behind = max(state.source_end - state.end, 0) if state.source_at else None
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
    if is_running:
        status = "running"
    elif state.is_closed:
        status = "closed"
    else:
        status = "not closed properly"
    yield f"broker {state.broker!r} of cluster {state.cluster!r} at {state.address}: {status}"
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


_NO_COPIES: Final = ClusterProgress({}, {})


@dataclass
class Report:
    """Reports how far copies are: every few seconds, and at the end; metrics each time.

    Attributes:
        broker: the only one that is followed; None of many, which are named then.
        as_json: whether progress is JSON Lines.
        metrics: what metrics show; None without any.
        file: the file of metrics, if there is one.
    """

    broker: str | None
    as_json: bool
    metrics: FollowMetrics | None
    file: Path | None
    _reported_at: float = float("-inf")
    _last: ClusterProgress = _NO_COPIES
    _why: str = ""

    def report_all(self, progress: ClusterProgress) -> None:
        """Report on all brokers, if the last time is a while ago."""
        self._last = progress
        if self.metrics is not None:
            self.metrics.update(progress)
        if time.monotonic() - self._reported_at >= _SECONDS and any(progress):
            self.report(progress)

    def report(self, progress: ClusterProgress) -> None:
        """Report it, and write the file of metrics."""
        self._reported_at = time.monotonic()
        self._write_metrics(progress)
        for broker in sorted({*progress.copies, *progress.errors}):
            known = progress.copies.get(broker)
            error = progress.errors.get(broker)
            if self.as_json:
                row: dict[str, Any] = {"broker": broker} if self.broker is None else {}
                if known is not None:
                    row |= known._asdict()
                if error is not None:
                    row["error"] = error
                click.echo(json.dumps(row))
                continue
            prefix = f"{broker}: " if self.broker is None else ""
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

    def end_with(self, error: RmqStoreError) -> None:
        """Let the file of metrics say that everything ended with this error.

        Those of many brokers were reported before.
        """
        copies = {
            name: copy._replace(is_connected=False) for name, copy in self._last.copies.items()
        }
        errors = self._last.errors
        if self.broker is not None:
            errors = {self.broker: str(error)}
        self._write_metrics(ClusterProgress(copies, errors))

    def _write_metrics(self, progress: ClusterProgress) -> None:
        """Write the file of metrics; if that fails, the copies continue."""
        if self.metrics is None:
            return
        self.metrics.update(progress)
        if self.file is None:
            return
        try:
            self.metrics.write(self.file)
            self._why = ""
        except OSError as err:
            why = err.strerror or str(err)
            if why != self._why:
                logger.warning("%s: metrics are not written: %s", self.file, why)
            self._why = why


def _start(_context: click.Context, _option: click.Parameter, value: str) -> Start:
    """Return the start of a new copy; its user checks a word."""
    return int(value) if value.isdecimal() else cast("Start", value)


def _secret(_context: click.Context, _option: click.Parameter, value: TextIO | None) -> str | None:
    """Return the secret that a file holds."""
    return None if value is None else value.read().strip()


_ADDRESS: Final = "HOST:PORT"
_DEFAULTS: Final = FollowSettings()
_FLAGS: Final = {
    "status": Flag("--status", "show how far the copies in the folder SOURCE are", is_flag=True),
    "namesrv": Flag(
        "--namesrv", "follow all brokers that these name servers know, into folders by their names",
        metavar=f"{_ADDRESS}[;{_ADDRESS}]",
    ),
    "cluster": Flag("--cluster", "only the brokers of this cluster"),
    "prefer_slave": Flag(
        "--prefer-slave", "follow a slave of each broker that has one", is_flag=True
    ),
    "once": Flag("--once", "stop at the end that the broker's log has now", is_flag=True),
    "until": Flag("--until", "stop at this physical offset", type=click.IntRange(0)),
    "start": Flag(
        "--from",
        "where a new copy begins: with the broker's first file, its last one, or the one that "
        "holds a physical offset",
        metavar="earliest|last-file|OFFSET", callback=_start, default=_DEFAULTS.start,
    ),
    "retain": Flag(
        "--retain",
        "how long files of the log stay: forever (default), mirror, an age (30d) or a size (500GB)",
        more=REPEATED, multiple=True,
    ),
    "keep_for": Flag(
        "--keep-for", "keep what the streaming query of this checkpoint has not read",
        more=REPEATED, metavar="CHECKPOINT", type=click.Path(), multiple=True,
    ),
    "on_gap": Flag(
        "--on-gap",
        "if the broker has deleted what comes next. restart: rename the copy and begin a new one",
        type=click.Choice(get_args(OnGap)), default=_DEFAULTS.on_gap,
    ),
    "acknowledge": Flag(
        "--ack",
        "with synced what is on the disk is acknowledged, as by a replica for which producers wait",
        type=click.Choice(get_args(Acknowledge)), default=_DEFAULTS.acknowledge,
    ),
    "allow_sync_master": Flag(
        "--allow-sync-master",
        "follow a SYNC_MASTER of RocketMQ 4, whose producers may have to wait", is_flag=True,
    ),
    "reconnect": Flag(
        "--no-loop", "exit with 1 if the connection ends", is_flag=True, callback=negated
    ),
    "max_rate": Flag("--max-rate", "bytes a second at most, by broker", type=POSITIVE),
    "ha_address": Flag("--ha-address", "where the broker serves its replicas", metavar=_ADDRESS),
    "build_queues": Flag(
        "--queues/--no-queues",
        "build queues and index. Without them, readers find messages by reading the log",
        default=True,
    ),
    "tables_seconds": Flag(
        "--tables-interval",
        "seconds between two requests for topics, groups and offsets, at least 1; 0 for one",
        type=click.FloatRange(0), default=_DEFAULTS.tables_seconds,
    ),
    "sync_seconds": Flag(
        "--sync-interval", "seconds after which received bytes have to be on the disk",
        type=click.FloatRange(0, min_open=True), default=_DEFAULTS.sync_seconds,
    ),
    "sync_bytes": Flag(
        "--sync-bytes", "received bytes after which they have to be on the disk", type=POSITIVE,
        default=_DEFAULTS.sync_bytes,
    ),
    "access_key": Flag("--access-key", "a user of the broker; it needs no rights"),
    "secret_key": Flag(
        "--secret-key-file",
        f"a file with the secret of the access key; else it is in {_SECRET_VARIABLE}",
        type=click.File("r"), callback=_secret,
    ),
    "tls": Flag("--tls", "TLS on the broker's listen port", is_flag=True),
    "tls_ca": Flag("--tls-ca", "certificates that are trusted", type=click.Path()),
    "tls_cert": Flag("--tls-cert", "a certificate to show to the broker", type=click.Path()),
    "tls_key": Flag("--tls-key", "the key of --tls-cert", type=click.Path()),
    "tls_any_host": Flag(
        "--tls-any-host", "accept a certificate of another host name", is_flag=True
    ),
    "metrics": Flag("--metrics", "serve metrics for Prometheus here", metavar=_ADDRESS),
    "metrics_file": Flag(
        "--metrics-file", "write metrics to this file, *.prom", type=click.Path(path_type=Path),
    ),
    "as_json": Flag("--json", "progress as JSON Lines on stdout", is_flag=True),
}  # fmt: skip


def _require_folders(asked: Mapping[str, Any]) -> None:
    """Refuse a second folder where there is one, and a broker without a folder."""
    if asked["target"] is None:
        if asked["namesrv"] is None and not asked["status"]:
            raise click.UsageError("name the folder TARGET")
    elif asked["status"]:
        raise click.UsageError("--status takes one folder")
    elif asked["namesrv"] is not None:
        raise click.UsageError("--namesrv takes one folder")


def _require_fitting(asked: Mapping[str, Any]) -> None:
    """Refuse options that are of one broker only, or of many."""
    how = "without"
    unfit = {"--cluster": asked["cluster"], "--prefer-slave": asked["prefer_slave"]}
    if asked["namesrv"] is not None:
        how = "with"
        unfit = {"--until": asked["until"], "--ha-address": asked["ha_address"]}
    for name, value in unfit.items():
        if value not in (None, False):
            raise OptionError(f"{name}: cannot be used {how} --namesrv")


def _arguments(asked: Mapping[str, Any], stop: threading.Event) -> FollowArguments:
    """Return how each broker is followed, until an event is set."""
    known = FollowArguments.__annotations__
    given = {name: value for name, value in asked.items() if name in known}
    if given["access_key"] is not None and given["secret_key"] is None:
        given["secret_key"] = environ.get(_SECRET_VARIABLE)
    return cast("FollowArguments", given | {"tls": _tls(asked), "stop": stop})


def _tls(asked: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Return the settings of TLS, None for plain text."""
    certificate = asked["tls_cert"]
    authorities = asked["tls_ca"]
    if asked["tls_key"] and not certificate:
        raise OptionError("--tls-key: needs --tls-cert")
    if not (asked["tls"] or authorities or certificate):
        if asked["tls_any_host"]:
            raise OptionError("--tls-any-host: needs --tls")
        return None
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            context.load_cert_chain(certificate, asked["tls_key"])
    except (OSError, ssl.SSLError) as err:
        raise OptionError(f"--tls: a certificate or key cannot be used: {err}") from err
    if asked["tls_any_host"]:
        context.check_hostname = False
    return context


@main.command("follow")
@click.argument("source")
@click.argument("target", required=False)
@options(*_FLAGS, table=_FLAGS)
@ends_clearly
def follow_brokers(**asked: Any) -> None:  # noqa: ANN401 - of the rows above
    """Keep an exact copy of a live broker's log in the folder TARGET.

    SOURCE is the broker's listen port, HOST:10911. The log comes from the port that serves its
    replicas. The copy is a store that can be read while it grows. The same command continues a
    copy. SIGINT and SIGTERM end it with a store that is closed. With --namesrv the only argument
    is the folder, which gets a copy of each broker.

    Examples:
        rmqstore follow broker-a:10911 /lake/broker-a
        rmqstore follow --namesrv ns-1:9876 /lake/copies --retain 30d
    """
    source = asked["source"]
    namesrv = asked["namesrv"]
    _require_folders(asked)
    if asked["status"]:
        show_status(source, as_json=asked["as_json"])
        return
    _require_fitting(asked)
    stop = threading.Event()
    arguments = _arguments(asked, stop)
    metrics = _metrics_of(asked["metrics"], asked["metrics_file"])
    broker = source if namesrv is None else None
    report = Report(broker, asked["as_json"], metrics, asked["metrics_file"])
    with stopped_by_signals(stop) as received, _ends_reported(report):
        if namesrv is not None:
            progress = follow_cluster(
                namesrv,
                source,
                cluster=asked["cluster"],
                prefer_slave=asked["prefer_slave"],
                progress=report.report_all,
                **arguments,
            )
        else:
            copy = follow(
                source,
                asked["target"],
                until=asked["until"],
                ha_address=asked["ha_address"],
                progress=lambda copy: report.report_all(ClusterProgress({source: copy}, {})),
                **arguments,
            )
            progress = ClusterProgress({source: copy}, {})
    report.report(progress)
    if received:
        sys.exit(_OF_SIGNAL + received[0])


@contextmanager
def _ends_reported(report: Report) -> Iterator[None]:
    """Let metrics show an error, and exit with 1 if a broker was lost."""
    try:
        yield
    except BrokerUnreachableError as err:
        report.end_with(err)
        click.echo(f"lost: {err}", err=True)
        sys.exit(_LOST)
    except RmqStoreError as err:
        report.end_with(err)
        raise


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
