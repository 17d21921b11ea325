"""Follows one broker, or all that name servers know, with metrics for Prometheus.

The metrics are served over HTTP, or written to a file for the node exporter.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Unpack

from rmqstore import platforms
from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    OptionError,
    RmqStoreError,
    StoreStateError,
    UnsupportedFeatureError,
    install,
)
from rmqstore.remoting import Address, Endpoint
from rmqstore.replica.broker_requests import RegisteredBroker, registered_brokers
from rmqstore.replica.follower import FollowCallback, Follower, ignore_follow_progress
from rmqstore.replica.settings import FollowArguments, FollowSettings, credentials_of, settings_of
from rmqstore.replica.state import FollowProgress, follow_status
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.remote_location import is_uri

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 30.0  # between two questions which brokers there are
_TICK_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 0.1  # between two polls whether an answer is still awaited


class ClusterProgress(NamedTuple):
    """How far the copies of a cluster are, by the names of their brokers.

    Attributes:
        copies: how far each is.
        errors: what ended those that could not continue.
    """

    copies: Mapping[str, FollowProgress]
    errors: Mapping[str, str]


ClusterCallback = Callable[[ClusterProgress], None]


def ignore_cluster_progress(progress: ClusterProgress) -> None:
    """Do nothing; the default progress callback."""


class _Member(threading.Thread):
    """A thread that follows one broker.

    Attributes:
        endpoint: where it is followed.
        progress: how far the copy is, None before it is open.
        error: what ended it.
        stop: set to end.
    """

    def __init__(self, endpoint: Endpoint, folder: Path, settings: FollowSettings) -> None:
        super().__init__(name=f"follow-{folder.name}")
        self.endpoint = endpoint
        self.progress: FollowProgress | None = None
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self._folder = folder
        self._settings = settings
        self.start()

    def run(self) -> None:
        """Follow the broker to the end."""
        try:
            follower = Follower(self.endpoint, self._folder, self._settings, self.stop, self._note)
            self.progress = follower.run()
        except RmqStoreError as err:
            self.error = err
            logger.error("%s: %s; the other brokers are still followed", self._folder.name, err)  # noqa: TRY400 - the text says it all
        except BaseException as err:
            self.error = err
            logger.exception("%s; the other brokers are still followed", self._folder.name)
        if self.error is not None and self.progress is not None:
            self.progress = self.progress._replace(is_connected=False)

    def _note(self, progress: FollowProgress) -> None:
        self.progress = progress


@dataclass
class ClusterFollower:
    """Follows the brokers of a cluster.

    Attributes:
        name_servers: the first one that answers is asked.
        target: the folder of the copies.
        settings: how each broker is followed.
        stop: set to end.
        cluster: only the brokers of this cluster; None for all.
        prefers_slave: follow a slave where there is one.
        progress: called about once a second.
        refresh_seconds: between two questions which brokers there are.
    """

    name_servers: Sequence[Endpoint]
    target: Path
    settings: FollowSettings
    stop: threading.Event
    _: KW_ONLY
    cluster: str | None = None
    prefers_slave: bool = False
    progress: ClusterCallback = ignore_cluster_progress
    refresh_seconds: float = REFRESH_SECONDS
    _members: dict[str, _Member] = field(default_factory=dict, init=False)
    _why: str = field(default="", init=False)
    _has_answered: bool = field(default=False, init=False)  # whether a name server has answered

    def run(self) -> ClusterProgress:
        """Follow until all copies have ended; raises as ``follow_cluster`` does."""
        self.target = LOCAL.full_path(self.target)
        with closing(Disk()) as disk:
            disk.make_folder(self.target, is_private=True)
        try:
            refreshed_at = float("-inf")
            while not self.stop.is_set():
                are_brokers_known = self.settings.once and self._has_answered
                is_due = time.monotonic() - refreshed_at >= self.refresh_seconds
                if is_due and not are_brokers_known:
                    self._refresh()
                    refreshed_at = time.monotonic()
                self.progress(self._now())
                members = self._members.values()
                if members and not any(member.is_alive() for member in members):
                    break
                self.stop.wait(min(_TICK_SECONDS, self.refresh_seconds))
        finally:
            for member in self._members.values():
                member.stop.set()
            for member in self._members.values():
                member.join()
        errors = {
            name: member.error for name, member in self._members.items() if member.error is not None
        }
        if not errors:
            return self._now()
        self.progress(self._now())  # some may have come up at the end
        halted = [
            f"{name}: {err}"
            for name, err in sorted(errors.items())
            if not isinstance(err, BrokerUnreachableError)
        ]
        if not halted:
            raise next(iter(errors.values()))
        count = f"{len(halted)} of {len(self._members)} copies could not continue"
        raise StoreStateError("; ".join([count, *halted]))

    def _refresh(self) -> None:
        """Follow new brokers, and those with a new address.

        Raises:
            StoreStateError: there is nothing to follow.
            BrokerUnreachableError: no name server answers, and it is not to be asked again.
        """
        answer: Future[list[RegisteredBroker]] = Future()
        threading.Thread(target=self._ask, args=(answer,), daemon=True).start()
        while not wait([answer], _ANSWER_SECONDS).done:
            if self.stop.is_set():
                return
        try:
            brokers = answer.result()
        except (BrokerUnreachableError, BrokerRefusedError) as err:
            if not self.settings.reconnect:
                raise
            if str(err) != self._why:
                logger.warning("%s; asking again and again", err)
            self._why = str(err)
            if not self._members and not self.settings.once:
                # The brokers of the copies are followed while no name server answers.
                for name, address in self._known().items():
                    self._start(name, address)
            return
        self._why = ""
        chosen = [broker for broker in brokers if self.cluster in (None, broker.cluster)]
        if not self._has_answered and not chosen and not self._members and not self._known():
            known = ", ".join(sorted({broker.cluster for broker in brokers})) or "none"
            asked = f" of cluster {self.cluster!r}; its clusters: {known}"
            of_cluster = "" if self.cluster is None else asked
            raise StoreStateError(f"the name server knows no broker{of_cluster}")
        self._has_answered = True
        for broker in chosen:
            self._take_up(broker)

    def _ask(self, answer: Future[list[RegisteredBroker]]) -> None:
        """Ask the name servers, one after the other."""
        try:
            for endpoint in self.name_servers[:-1]:
                try:
                    brokers = registered_brokers(endpoint)
                except (BrokerUnreachableError, BrokerRefusedError) as err:
                    logger.info("%s; asking the next name server", err)
                else:
                    answer.set_result(brokers)
                    return
            answer.set_result(registered_brokers(self.name_servers[-1]))
        except BaseException as err:  # noqa: BLE001 - raised in the thread that asked
            answer.set_exception(err)

    def _take_up(self, broker: RegisteredBroker) -> None:
        member = self._members.get(broker.name)
        current = None if member is None else member.endpoint.address
        address = broker.address(current, prefers_slave=self.prefers_slave)
        if address is None or address == current:
            return
        if member is not None:
            if not member.is_alive():  # a person has to look at it
                return
            logger.warning("%s: the broker is now at %s", broker.name, address)
            member.stop.set()
            member.join()
        self._start(broker.name, address)

    def _start(self, name: str, address: Address) -> None:
        endpoint = replace(self.name_servers[0], address=address)
        self._members[name] = _Member(endpoint, self.target / name, self.settings)

    def _known(self) -> dict[str, Address]:
        """Return the brokers of existing copies, with their addresses."""
        known = {}
        for entry in LOCAL.list_folder(self.target):
            with suppress(StoreStateError, OptionError):  # another copy, or a damaged one
                state, _ = follow_status(self.target / entry.name)
                if entry.name == state.broker and self.cluster in (None, state.cluster):
                    known[entry.name] = Address.parse(state.address)
        return known

    def _now(self) -> ClusterProgress:
        members = sorted(self._members.items())
        return ClusterProgress(
            {name: member.progress for name, member in members if member.progress is not None},
            {name: str(member.error) for name, member in members if member.error is not None},
        )


def follow(
    source: str,
    target: str | os.PathLike[str],
    *,
    until: int | None = None,
    ha_address: str | None = None,
    progress: FollowCallback = ignore_follow_progress,
    **arguments: Unpack[FollowArguments],
) -> FollowProgress:
    """Keep an exact copy of a live broker's log, over the port that serves its replicas.

    The copy is a store. Everything of this package reads it while it grows. A copy that was
    interrupted is continued by the same call: it is compared with the broker's log first, and cut
    where the broker does not have it any more; what is cut is kept in ``.rmqstore/cut``.

    Args:
        source: the broker's listen port, ``host:10911``. A slave can be followed too.
        target: the folder of the copy.
        until: return as soon as the copy reaches this physical offset.
        ha_address: where the broker serves replicas, if its own port does not lead there.
        progress: called about once a second.
        once: return as soon as the copy is as long as the log was at the start of the call.
        start: where a new copy begins: with the broker's first file (``earliest``, the default),
            with its ``last-file``, or with the file that holds a physical offset.
        acknowledge: ``synced`` reports what is on the disk. The broker then takes the follower for
            a replica, for which producers of a SYNC_MASTER wait. By default ``never``, as always in
            controller mode.
        allow_sync_master: follow a SYNC_MASTER of RocketMQ 4, whose producers may have to wait.
        reconnect: connect again if the connection ends, instead of raising an error; the default.
        max_rate: bytes a second at most.
        build_queues: build queues and index, as a replica does; the default. Without them, readers
            find the messages by reading the log; a later call builds them, or a broker that opens
            the copy.
        tables_seconds: how often topics, groups and offsets are fetched, 60 by default; 0 for once.
        sync_seconds: seconds after which received bytes have to be on the disk, 1 by default.
        sync_bytes: received bytes after which they have to be there, 64 MiB by default.
        retain: how long files of the log stay: ``forever``, the default; ``mirror``, as long as
            the broker has them; an age such as ``30d``; a size such as ``500GB``; or several of
            these, each of which deletes.
        keep_for: checkpoints of streaming queries in Spark; what they have not read yet stays.
        on_gap: what is done if the broker has deleted what comes next: ``fail``, the default, or
            ``restart``, which renames the folder to ``TARGET.until-OFFSET`` and begins a new copy.
        access_key: of a user of the broker; no rights are needed.
        secret_key: the secret of the access key.
        security_token: a token, where one is in use.
        tls: settings of TLS for the listen port. The HA port has none.
        stop: set it to end the call, with a copy that is a closed store.

    Returns:
        How far the copy is.

    Raises:
        BrokerUnreachableError: the connection ended, and ``reconnect`` is false.
        BrokerRefusedError: the broker refused a request, such as one with a wrong secret.
        StoreStateError: the target is not a copy of this broker, the broker has already deleted
            what comes next, or following it would do harm.
        UnsupportedFeatureError: the broker replicates its log in another way.
        CorruptRecordError: the broker's log is not a chain of records.
    """
    settings = settings_of(arguments, until=until, ha_address=ha_address)
    endpoint = Endpoint(Address.parse(source), credentials_of(arguments), arguments.get("tls"))
    stop = arguments.get("stop") or threading.Event()
    return Follower(endpoint, _local(target), settings, stop, progress).run()


def _local(target: str | os.PathLike[str]) -> Path:
    """Return the folder of a copy.

    Raises:
        UnsupportedFeatureError: it is not a local one, or this system keeps no live copies.
    """
    platforms.require_linux("a live copy")
    path = Path(target)
    if is_uri(path):
        raise UnsupportedFeatureError(
            f"{target}: a live copy is written to a local disk only; "
            "copy it from there afterwards (rmqstore copy)"
        )
    return path


def follow_cluster(
    namesrv: str | Sequence[str],
    target: str | os.PathLike[str],
    *,
    cluster: str | None = None,
    prefer_slave: bool = False,
    progress: ClusterCallback = ignore_cluster_progress,
    **arguments: Unpack[FollowArguments],
) -> ClusterProgress:
    """Keep a copy of each broker that a name server knows, in a folder by the broker's name.

    A broker that is registered later is followed as well. One that goes away is tried again and
    again. If a copy cannot continue, as :func:`follow` would say by an error, the error is logged,
    and the others continue.

    Args:
        namesrv: name servers, ``host:9876``; several are joined by ``;`` or given as a list. The
            first one that answers is asked.
        target: the folder of the copies.
        cluster: only the brokers of this cluster.
        prefer_slave: follow a slave of each broker that has one, instead of its master.
        progress: called about once a second.
        arguments: as of :func:`follow`; they hold for every broker.

    Returns:
        How far the copies are.

    Raises:
        StoreStateError: a copy could not continue, or the name servers do not know the cluster.
        BrokerUnreachableError: a connection ended, and ``reconnect`` is false.
    """
    texts = namesrv.split(";") if isinstance(namesrv, str) else namesrv
    addresses = [Address.parse(text) for text in texts if text.strip()]
    if not addresses:
        raise OptionError("`namesrv`: name a name server, HOST:PORT")
    settings = settings_of(arguments)
    if isinstance(settings.start, int):
        raise OptionError("`start`: an offset is of one broker only")
    credentials, tls = credentials_of(arguments), arguments.get("tls")
    return ClusterFollower(
        [Endpoint(address, credentials, tls) for address in addresses],
        _local(target),
        settings,
        arguments.get("stop") or threading.Event(),
        cluster=cluster,
        prefers_slave=prefer_slave,
        progress=progress,
    ).run()


_PREFIX: Final = "rmqstore_follow"
_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "connected": ("is_connected", "Whether bytes of the broker's log are being received."),
    "begin_offset": ("begin", "Physical offset where the copy begins."),
    "end_offset": ("end", "Physical offset after the last record that is on the disk."),
    "source_end_offset": ("source_end", "Where the broker's log ended when it was last asked."),
    "queues_end_offset": ("queues_end", "Physical offset up to which queues and index are built."),
    "lag_bytes": ("bytes_behind", "What the copy is known to lack."),
    "lag_seconds": ("seconds_behind", "Age of the newest record of a copy that lacks some."),
}
_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "connections": ("n_connections", "Connections since the follower was started."),
    "cuts": ("n_cuts", "How many times an end that the broker has lost was cut."),
}


class FollowMetrics:
    """The metrics of all followers of a process, in a registry of their own.

    Raises:
        UnsupportedFeatureError: the library is not installed.
    """

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as err:
            raise UnsupportedFeatureError(
                f"metrics need prometheus-client: {install('metrics')} ({err})"
            ) from err
        self._progress = ClusterProgress({}, {})
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def update(self, progress: ClusterProgress) -> None:
        """Take what is shown from now on."""
        self._progress = progress

    def serve(self, address: Address) -> None:
        """Answer Prometheus at an address until the process ends.

        Raises:
            StoreStateError: the address cannot be listened on.
        """
        from prometheus_client import start_http_server

        try:
            start_http_server(address.port, address.host, self._registry)
        except OSError as err:
            raise StoreStateError(f"metrics cannot be served at {address}: {err}") from err

    def write(self, path: Path) -> None:
        """Replace a file, whose name should end in ``.prom``.

        Raises:
            OSError: it cannot be written.
        """
        from prometheus_client import write_to_textfile

        write_to_textfile(str(path), self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; called by the library."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        copies, errors = self._progress
        followed = {broker: float(broker not in errors) for broker in sorted({*copies, *errors})}
        text = "Whether the broker is followed; 0 after an error."
        yield _family(GaugeMetricFamily, "up", text, followed)
        for kind, known in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, (figure, text) in known.items():
                values = {broker: float(getattr(copy, figure)) for broker, copy in copies.items()}
                yield _family(kind, name, text, values)
        text = "When the broker reported the end of its log the last time, epoch seconds."
        times = {broker: progress.source_at / 1000 for broker, progress in copies.items()}
        yield _family(GaugeMetricFamily, "source_timestamp_seconds", text, times)


def _family(kind: type[Any], name: str, text: str, values: Mapping[str, float]) -> Any:  # noqa: ANN401 - of this kind
    """Return a metric with a value for each broker."""
    family = kind(f"{_PREFIX}_{name}", text, labels=["broker"])
    for broker, value in values.items():
        family.add_metric([broker], value)
    return family
