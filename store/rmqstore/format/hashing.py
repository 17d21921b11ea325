"""Checksums and hash codes as RocketMQ computes them; scalar and whole-column forms."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import CRC_MASK
from rmqstore.format.utf8 import decode_text

try:  # about twice as fast on short bodies; the `fast` extra
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    _crc32 = zlib.crc32

crc32: Callable[[bytes | memoryview], int] = _crc32


def body_crc(body: bytes | memoryview) -> int:
    """Return the checksum a record carries for its stored body: CRC-32 without its top bit, 0 for an empty body.

    Source: UtilAll.java#crc32.
    """
    return crc32(body) & CRC_MASK


def body_crcs(bodies: Iterable[bytes]) -> NDArray[np.int32]:
    """Return :func:`body_crc` of each body, int32 (n,).

    One library call a body: no array form of CRC-32 beats it.
    """
    return (np.fromiter(map(crc32, bodies), np.uint32) & np.uint32(CRC_MASK)).astype(np.int32)


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: 31-based over UTF-16 code units, wrapped to a signed 32-bit integer."""
    code = 0
    for unit in np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist():
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code


# 31 is odd, so it has an inverse modulo 2^32, and the power that a byte is weighed by needs no knowledge of its string:
# sum(byte * 31^-place) over a string, times 31^(place of its last byte).
_POWERS_AT_ONCE = 1 << 16
_31 = np.uint32(31)
_INVERSE_31 = np.uint32(pow(31, -1, 1 << 32))


def _powers(base: np.uint32, count: int) -> NDArray[np.uint32]:
    powers = np.full(count, base, np.uint32)
    powers[:1] = 1
    with np.errstate(over="ignore"):
        found: NDArray[np.uint32] = np.multiply.accumulate(powers, dtype=np.uint32)
    return found


_POWERS, _INVERSE_POWERS = _powers(_31, _POWERS_AT_ONCE), _powers(_INVERSE_31, _POWERS_AT_ONCE)


def java_hashes(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return Java's ``String.hashCode`` of many strings; equals :func:`java_hash` of each.

    Args:
        data: uint8 (nbytes,), the strings in UTF-8, one behind the other.
        offsets: int64 (n + 1,), where each begins; strings are shorter than 64 KiB.
    """
    lengths = np.diff(offsets)
    n = len(lengths)
    hashes = np.zeros(n, np.uint32)
    done = 0
    while done < n:  # so many strings at once as the table of powers reaches
        stop = int(np.searchsorted(offsets, offsets[done] + _POWERS_AT_ONCE, side="right")) - 1
        stop = max(stop, done + 1)
        base = int(offsets[done])
        text = data[base : int(offsets[stop])].astype(np.uint32)
        weighed = text * _INVERSE_POWERS[: len(text)]
        filled = np.flatnonzero(lengths[done:stop])
        if len(filled):
            sums = np.add.reduceat(weighed, offsets[done:stop][filled] - base, dtype=np.uint32)
            hashes[done + filled] = sums * _POWERS[offsets[done + 1 : stop + 1][filled] - base - 1]
        done = stop
    if len(data) and (data[int(offsets[0]) : int(offsets[-1])] & 0x80).any():  # UTF-16 units are not UTF-8 bytes there
        foreign = np.add.reduceat(np.append(data >> 7, np.uint8(0)).astype(np.int64), offsets[:-1]) * (lengths > 0)
        for row in np.flatnonzero(foreign).tolist():
            text_bytes = data[int(offsets[row]) : int(offsets[row + 1])].tobytes()
            hashes[row] = java_hash(decode_text(text_bytes)) & 0xFFFFFFFF
    return hashes.view(np.int32)


def appended_hashes(
    prefixes: NDArray[np.int32], suffixes: NDArray[np.int32], lengths: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return the hash codes of prefix + suffix, from those of the two and the UTF-16 lengths of the suffixes, (n,)."""
    shifted = prefixes.view(np.uint32) * _POWERS[lengths]
    found: NDArray[np.int32] = (shifted + suffixes.view(np.uint32)).view(np.int32)
    return found


def tags_code(tags: str | None) -> int:
    """Return what a ConsumeQueue unit holds for a tag: its hash code, 0 for none.

    Source: MessageExtBrokerInner.java#tagsString2tagsCode.
    """
    return java_hash(tags) if tags else 0
