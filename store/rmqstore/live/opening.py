"""``rmqstore.open`` of running brokers, and ``rmqstore.open_live``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from rmqstore.errors import OptionError, marked
from rmqstore.live.live_cluster import LiveCluster
from rmqstore.live.location import LiveLocation
from rmqstore.live.writer import LiveWriter
from rmqstore.write.messages import WriteSpec


def open_live(path: str, *, storage_options: Mapping[str, object] | None = None) -> LiveCluster:
    """Open the running brokers of a cluster for reading; ``rmqstore.open`` does so too.

    Args:
        path: the address of its name servers, such as ``rocketmq://ns1:9876;ns2:9876``.
        storage_options: how they are talked to, such as ``access_key``; see ``docs/live.md``.

    Raises:
        OptionError: it is not such an address, or an option is unknown.
    """
    return LiveCluster(LiveLocation.parse(path, storage_options))


def open_brokers(
    path: str | os.PathLike[str],
    mode: str,
    spec: WriteSpec | None,
    storage_options: Mapping[str, object] | None,
    of_stores: Sequence[str],
) -> LiveCluster | LiveWriter:
    """Open running brokers for ``rmqstore.open``, to read or to send.

    Args:
        path: the address of name servers.
        mode: ``"r"`` or ``"a"``.
        spec: how messages are made that are sent.
        storage_options: how the servers are talked to.
        of_stores: the arguments that were given and that only stores take: there may be none.

    Raises:
        OptionError: it is no mode, or one of the arguments of stores is given.
    """
    if of_stores:
        raise OptionError(f"{marked(of_stores)}: running brokers take none of it")
    if mode not in ("r", "a"):
        raise OptionError(f"mode {mode!r}: must be 'r' to read or 'a' to append")
    location = LiveLocation.parse(os.fspath(path), storage_options)
    if mode == "a":
        return LiveWriter(location, spec)
    return LiveCluster(location)
