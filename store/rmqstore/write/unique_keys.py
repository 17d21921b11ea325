"""Unique keys of messages, generated as the Java client does."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Callable
from datetime import datetime

import numpy as np
import pyarrow as pa

from rmqstore.format.columns.hosts import hex_rows


class UniqueKeys:
    """Generates UNIQ_KEYs as the Java client does: address, process id, a random number, time and counter.

    Source: MessageClientIDSetter.java.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms, self._made = now_ms, 0
        own = ipaddress.ip_address(own_address()).packed
        self._head = own + (os.getpid() & 0xFFFF).to_bytes(2) + secrets.token_bytes(4)
        self._begun = now_ms()

    def make(self, count: int) -> pa.StringArray:
        """Return new keys, string (count,)."""
        started = datetime.fromtimestamp(self._begun / 1000).astimezone()
        month = started.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        numbers = np.arange(self._made, self._made + count, dtype=np.int64)
        self._made += count
        tails = np.empty(count, np.dtype([("time", ">i4"), ("counter", ">u2")]))
        # The counter has 16 bits, so the time advances by a millisecond every 65,536 keys.
        tails["time"] = int((started - month).total_seconds() * 1000) + (numbers >> 16)
        tails["counter"] = numbers & 0xFFFF
        heads = np.broadcast_to(np.frombuffer(self._head, np.uint8), (count, len(self._head)))
        return hex_rows(
            np.hstack((heads, tails.view(np.uint8).reshape(count, tails.dtype.itemsize)))
        )


def own_address() -> str:
    """Return this host's IPv4 address, or the loopback address if it has no other."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
