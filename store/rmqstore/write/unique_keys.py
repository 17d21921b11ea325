"""Unique keys of messages: generated as the Java client does, and told from offset message ids."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Callable
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.format.columns.hosts import hex_rows, offset_ids, pack_hosts

_NO_HOST = "0.0.0.0:0"


class UniqueKeys:
    """Generates UNIQ_KEYs from an address, a process id, a random number, the time and a counter.

    Source: MessageClientIDSetter.java.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._n_made = 0
        own = ipaddress.ip_address(own_address()).packed
        self._head = own + (os.getpid() & 0xFFFF).to_bytes(2) + secrets.token_bytes(4)
        self._started_ms = now_ms()

    def make(self, count: int) -> pa.StringArray:
        """Return new keys, string (count,)."""
        started = datetime.fromtimestamp(self._started_ms / 1000).astimezone()
        month = started.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        numbers = np.arange(self._n_made, self._n_made + count, dtype=np.int64)
        self._n_made += count
        tails = np.empty(count, np.dtype([("time", ">i4"), ("counter", ">u2")]))
        # The counter has 16 bits, so the time advances by a millisecond every 65,536 keys.
        tails["time"] = int((started - month).total_seconds() * 1000) + (numbers >> 16)
        tails["counter"] = numbers & 0xFFFF
        heads = np.broadcast_to(np.frombuffer(self._head, np.uint8), (count, len(self._head)))
        tail_bytes = tails.view(np.uint8).reshape(count, tails.dtype.itemsize)
        return hex_rows(np.hstack((heads, tail_bytes)))


def are_offset_ids(ids: pa.StringArray, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return a mask (n,) of the msgIds that are not a UNIQ_KEY but the row's offset message id.

    Args:
        ids: the msgIds of the rows, (n,).
        batch: the rows. Those that were read from a store have other columns that tell the offset
            message id.
    """
    names = set(batch.schema.names)
    if "offsetMsgId" in names:
        return pc.fill_null(pc.equal(ids, batch.column("offsetMsgId")), fill_value=False)
    if not {"storeHost", "commitLogOffset"} <= names:
        return pa.repeat(pa.scalar(value=False), len(ids))
    hosts, offsets = batch.column("storeHost"), batch.column("commitLogOffset")
    known = pc.and_(hosts.is_valid(), offsets.is_valid())
    own = offset_ids(pack_hosts(hosts.fill_null(_NO_HOST)), offsets.fill_null(0).to_numpy())
    return pc.fill_null(pc.and_(known, pc.equal(ids, own)), fill_value=False)


def own_address() -> str:
    """Return this host's IPv4 address, or the loopback address if it has no other."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
