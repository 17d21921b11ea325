"""Hosts as text, ``ip:port``, to hosts as stored, many at once: few are distinct, each is parsed once."""

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
    """n hosts in the width of IPv6; those of IPv4 use the first bytes."""

    packed: NDArray[np.uint8]  # (n, 20)
    is_v6: Mask

    def take(self, rows: Positions | slice) -> Hosts:
        """Return the chosen rows."""
        return Hosts(self.packed[rows], self.is_v6[rows])

    def stored(self, wide: bool) -> NDArray[np.void]:
        """Return hosts that are all of one width in the dtype of a record's host field, (n,)."""
        kind = _KINDS[wide]
        return np.ascontiguousarray(self.packed[:, : kind.itemsize]).view(kind).ravel()


def pack_hosts(hosts: pa.StringArray) -> Hosts:
    """Parse hosts, string (n,) without nulls.

    Raises:
        IllegalMessageError: one of them is no ``ip:port``; IPv6 stands in brackets.
    """
    encoded = hosts.dictionary_encode()
    distinct = [pack_host(text) for text in encoded.dictionary.to_pylist()]
    width = _KINDS[True].itemsize
    packed = np.frombuffer(b"".join(host.ljust(width, b"\0") for host in distinct), np.uint8).reshape(-1, width)
    codes = encoded.indices.to_numpy()
    return Hosts(packed[codes], np.array([len(host) == width for host in distinct], np.bool_)[codes])


@lru_cache(maxsize=65536)
def pack_host(text: str) -> bytes:
    """Return a host as stored: 4 or 16 address bytes and the port.

    Raises:
        IllegalMessageError: the text is no ``ip:port``.
    """
    address, _, port = text.rpartition(":")
    try:
        return ipaddress.ip_address(address.removeprefix("[").removesuffix("]")).packed + int(port).to_bytes(4)
    except (ValueError, OverflowError) as err:
        raise IllegalMessageError(f"host {text!r}: ip:port, an IPv6 address in brackets ({err})") from err
