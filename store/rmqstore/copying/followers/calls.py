"""The public calls: follow one broker, or all brokers of a cluster."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from rmqstore.copying.followers.cluster import (
    ClusterCallback,
    ClusterFollower,
    ClusterProgress,
    ignore_cluster_progress,
)
from rmqstore.copying.following.follower import FollowCallback, Follower, ignore_follow_progress
from rmqstore.copying.following.progress import FollowProgress
from rmqstore.copying.following.remoting.client import Address, Endpoint
from rmqstore.copying.following.settings import (
    FollowArguments,
    HaMode,
    credentials_of,
    settings_of,
)
from rmqstore.errors import OptionError, UnsupportedFeatureError, about
from rmqstore.storage.remote.location import is_uri


def follow(
    source: str,
    target: str | os.PathLike[str],
    *,
    until: int | None = None,
    ha_address: str | None = None,
    ha_mode: HaMode | None = None,
    file_size: int | None = None,
    progress: FollowCallback = ignore_follow_progress,
    **arguments: Unpack[FollowArguments],
) -> FollowProgress:
    """Keep an exact copy of a live broker's log, over the port that serves its replicas.

    The copy is a store. Everything of this package reads it while it grows. A copy that was
    interrupted is continued by the same call: it is compared with the broker's log first, and cut
    where the broker does not have it any more; what is cut is kept in ``.rmqstore/cut``.

    Args:
        source: the broker's ordinary port, ``host:10911``. A slave can be followed too. With
            ``ha_mode`` it is the port for replicas, ``host:10912``.
        target: the folder of the copy.
        until: return as soon as the copy reaches this physical offset.
        ha_address: where the broker serves replicas, if its own port does not lead there.
        ha_mode: ``default`` follows by the port for replicas alone, where the ordinary port cannot
            be reached. Then there are no tables, how far the copy is behind is not known, and a new
            copy begins with the broker's ``last-file`` or a physical offset.
        file_size: bytes of each file of the broker's log, ``mappedFileSizeCommitLog``. It goes with
            ``ha_mode``, and a copy that is there knows it.
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
        sync_seconds: after how many seconds what came has to be on the disk, 1 by default.
        sync_bytes: after how many bytes it has to be there, 64 MiB by default.
        retain: how long files of the log stay: ``forever``, the default; ``mirror``, as long as
            the broker has them; an age such as ``30d``; a size such as ``500GB``; or several of
            these, each of which deletes.
        keep_for: checkpoints of streaming queries in Spark; what they have not read yet stays.
        on_gap: what is done if the broker has deleted what comes next: ``fail``, the default, or
            ``restart``, which renames the folder to ``TARGET.until-OFFSET`` and begins a new copy.
        access_key: of a user of the broker; no rights are needed.
        secret_key: the secret of the access key.
        security_token: a token, where one is in use.
        tls: settings of TLS for the ordinary port. The port for replicas has none.
        stop: set it to end the call, with a copy that is a closed store.

    Returns:
        How far the copy is.

    Raises:
        BrokerUnreachableError: the connection ended, and ``reconnect`` is false.
        BrokerRefusedError: the broker refused a request, such as one with a wrong secret.
        StoreStateError: the target is not a copy of this broker, the broker has already deleted
            what comes next, or following it would do harm.
        UnsupportedFeatureError: the broker replicates its log in another way, or is in controller
            mode and its ordinary port is not asked.
        CorruptRecordError: the broker's log is not a chain of records.
    """
    settings = settings_of(
        arguments, until=until, ha_address=ha_address, ha_mode=ha_mode, file_size=file_size
    )
    endpoint = Endpoint(Address.parse(source), credentials_of(arguments), arguments.get("tls"))
    stop = arguments.get("stop") or threading.Event()
    return Follower(endpoint, _local(target), settings, stop, progress).run()


def _local(target: str | os.PathLike[str]) -> Path:
    """Return the folder of a copy; raises UnsupportedFeatureError if it is not a local one."""
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
    again. If a copy cannot go on, as :func:`follow` would say by an error, the error is logged, and
    the others go on.

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
        StoreStateError: a copy could not go on, or the name servers do not know the cluster.
        BrokerUnreachableError: a connection ended, and ``reconnect`` is false.
    """
    texts = namesrv.split(";") if isinstance(namesrv, str) else namesrv
    addresses = [Address.parse(text) for text in texts if text.strip()]
    if not addresses:
        raise OptionError(about("namesrv", ": name a name server, HOST:PORT"))
    settings = settings_of(arguments)
    if isinstance(settings.start, int):
        raise OptionError(about("start", ": an offset is of one broker only"))
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
