"""Hosts as text, ``ip:port``, to hosts as stored, and offset message ids, which begin with one.

Few of many hosts are distinct, so each distinct one is parsed once.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqstore.errors import IllegalMessageError
from rmqstore.format.layout import FIXED_PART, Mask, Positions, SysFlag

_KINDS = {wide: FIXED_PART[int(SysFlag.BORN_HOST_V6) * wide]["born_host"] for wide in (False, True)}


class Hosts(NamedTuple):
    """n hosts in the width of IPv6; an IPv4 host uses the first bytes of its row."""

    packed: NDArray[np.uint8]  # (n, 20)
    is_v6: Mask

    @classmethod
    def constant(cls, text: str, n: int) -> Hosts:
        """Return one host for all of n records; see :func:`pack_host`."""
        host = pack_host(text)
        width = _KINDS[True].itemsize
        packed = np.frombuffer(host.ljust(width, b"\0"), np.uint8)
        is_v6 = np.broadcast_to(np.bool_(len(host) == width), n)
        return cls(np.broadcast_to(packed, (n, width)), is_v6)

    def take(self, rows: Positions | slice) -> Hosts:
        """Return the chosen rows."""
        return Hosts(self.packed[rows], self.is_v6[rows])

    def stored(self, wide: bool) -> NDArray[np.void]:
        """Return hosts of one width, (n,), in the dtype of a record's host field."""
        kind = _KINDS[wide]
        return np.ascontiguousarray(self.packed[:, : kind.itemsize]).view(kind).ravel()


def pack_hosts(hosts: pa.StringArray) -> Hosts:
    """Parse hosts, string (n,) without nulls.

    Raises:
        IllegalMessageError: a host is not ``ip:port``, with an IPv6 address in brackets.
    """
    encoded = hosts.dictionary_encode()
    distinct = [pack_host(text) for text in encoded.dictionary.to_pylist()]
    width = _KINDS[True].itemsize
    padded = b"".join(host.ljust(width, b"\0") for host in distinct)
    packed = np.frombuffer(padded, np.uint8).reshape(-1, width)
    is_v6 = np.array([len(host) == width for host in distinct], np.bool_)
    codes = encoded.indices.to_numpy()
    return Hosts(packed[codes], is_v6[codes])


@lru_cache(maxsize=65536)
def pack_host(text: str) -> bytes:
    """Return a host as stored: 4 or 16 address bytes and the port.

    Raises:
        IllegalMessageError: the text is not ``ip:port``.
    """
    address, _, port = text.rpartition(":")
    try:
        ip_address = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
        return ip_address.packed + int(port).to_bytes(4)
    except (ValueError, OverflowError) as err:
        raise IllegalMessageError(
            f"host {text!r}: must be ip:port, with an IPv6 address in brackets ({err})"
        ) from err


_OFFSET = np.dtype(">i8")

# The two upper-case hex digits of each byte, as one 16-bit value in memory order.
_HEX = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)


def hex_rows(rows: NDArray[np.uint8]) -> pa.StringArray:
    """Return the rows of a matrix of bytes in upper-case hex, string (n,)."""
    digits = np.ascontiguousarray(_HEX[rows])
    n, width = len(digits), 2 * rows.shape[1]
    offsets = np.arange(n + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(
        pa.string(), n, [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
    )


def offset_ids(hosts: Hosts, physical_offsets: NDArray[np.int64]) -> pa.StringArray:
    """Return offset message ids, store host and physical offset in hex, string (n,).

    Source: MessageDecoder.java#createMessageId.
    """
    offset_bytes = physical_offsets.astype(_OFFSET).view(np.uint8)
    offsets = offset_bytes.reshape(len(physical_offsets), _OFFSET.itemsize)
    parts: list[pa.StringArray] = []
    order = np.empty(len(offsets), np.int64)
    filled = 0
    for wide, kind in _KINDS.items():
        rows = np.flatnonzero(hosts.is_v6 == wide)
        if len(rows):
            parts.append(hex_rows(np.hstack((hosts.packed[rows, : kind.itemsize], offsets[rows]))))
            order[rows] = np.arange(filled, filled + len(rows))
            filled += len(rows)
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(pa.array(order)) if parts else pa.array([], pa.string())
