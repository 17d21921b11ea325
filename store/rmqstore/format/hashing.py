"""Checksums and hash codes as RocketMQ computes them, for one value and for whole columns.

The Bloom filter of a record stands for the groups whose SQL92 expressions the message matches.

Source: BloomFilter.java, BitsArray.java, ExpressionMessageFilter.java.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

import mmh3
import numpy as np
from numpy.typing import NDArray

from rmqstore.format.layout import CRC_MASK
from rmqstore.format.text import decode_text

N_HASHES = 3  # Source: MessageStoreConfig's maxErrorRateOfBloomFilter, 20 (per cent) by default

try:  # the extra `fast`: about twice as fast on short bodies
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    _crc32 = zlib.crc32

crc32: Callable[[bytes | memoryview], int] = _crc32


def bit_positions(group: str, topic: str, n_bits: int) -> list[int]:
    """Return the positions of the bits that stand for a consumer group of a topic.

    There are ``N_HASHES``, of which several may be the same bit.

    Args:
        group: consumer group.
        topic: topic that the group subscribes to.
        n_bits: size of the bit map, at least 1.
    """
    low = int(mmh3.hash64(f"{group}#{topic}".encode(), 0, x64arch=True, signed=False)[0])
    first = _as_int(low)
    second = _as_int(low >> 32)
    combined = [_as_int(first + number * second) for number in range(1, N_HASHES + 1)]
    return [(number if number >= 0 else ~number) % n_bits for number in combined]


def _as_int(number: int) -> int:
    """Return the lower 32 bits as Java's int."""
    return int.from_bytes((number & 0xFFFFFFFF).to_bytes(4), signed=True)


def may_match(bit_map: bytes, group: str, topic: str) -> bool:
    """Return whether a message may match a group's expression; only False is certain.

    Args:
        bit_map: bit map of the message's ext unit; if it is empty, the message may match.
        group: consumer group.
        topic: topic of the message.
    """
    positions = bit_positions(group, topic, 8 * len(bit_map)) if bit_map else []
    # The lowest bit of the first byte has position 0.
    return all(bit_map[position // 8] >> position % 8 & 1 for position in positions)


def body_crc(body: bytes | memoryview) -> int:
    """Return the checksum of a stored body: CRC-32 without its top bit, 0 for an empty body.

    Source: UtilAll.java#crc32.
    """
    return crc32(body) & CRC_MASK


def body_crcs(bodies: Iterable[bytes]) -> NDArray[np.int32]:
    """Return :func:`body_crc` of each body, int32 (n,).

    There is one library call per body: no array form of CRC-32 is faster.
    """
    return (np.fromiter(map(crc32, bodies), np.uint32) & np.uint32(CRC_MASK)).astype(np.int32)


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``, a polynomial in 31 over UTF-16 code units.

    The result is a signed 32-bit integer.
    """
    code = 0
    for unit in np.frombuffer(text.encode("utf-16-be", "surrogatepass"), ">u2").tolist():
        code = (31 * code + unit) & 0xFFFFFFFF
    return _as_int(code)


# 31 is odd, so it has an inverse modulo 2^32. That lets every byte be weighted by its position in
# the whole buffer, whichever string it belongs to: hash = sum(byte * 31^-position) * 31^(position
# of the string's last byte).
_POWERS_AT_ONCE = 1 << 16


def _powers(base: int) -> NDArray[np.uint32]:
    powers = np.full(_POWERS_AT_ONCE, base, np.uint32)
    powers[:1] = 1
    with np.errstate(over="ignore"):
        accumulated: NDArray[np.uint32] = np.multiply.accumulate(powers, dtype=np.uint32)
    return accumulated


_POWERS = _powers(31)
_INVERSE_POWERS = _powers(pow(31, -1, 1 << 32))


def java_hashes(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return :func:`java_hash` of each of many strings, int32 (n,).

    Args:
        data: uint8 (nbytes,), the strings in UTF-8, one after the other.
        offsets: int64 (n + 1,), where each string begins in ``data``. A string is shorter than
            64 KiB.
    """
    lengths = np.diff(offsets)
    n = len(lengths)
    hashes = np.zeros(n, np.uint32)
    done = 0
    while done < n:  # as many strings at once as the table of powers covers
        stop = int(np.searchsorted(offsets, offsets[done] + _POWERS_AT_ONCE, side="right")) - 1
        stop = max(stop, done + 1)
        base = int(offsets[done])
        text = data[base : int(offsets[stop])].astype(np.uint32)
        weighted = text * _INVERSE_POWERS[: len(text)]
        filled = np.flatnonzero(lengths[done:stop])
        if len(filled):
            sums = np.add.reduceat(weighted, offsets[done:stop][filled] - base, dtype=np.uint32)
            hashes[done + filled] = sums * _POWERS[offsets[done + 1 : stop + 1][filled] - base - 1]
        done = stop
    if len(data) and (data[int(offsets[0]) : int(offsets[-1])] & 0x80).any():
        # A UTF-16 code unit outside of ASCII is not one byte of UTF-8: hash these strings singly.
        is_high = np.append(data >> 7, np.uint8(0)).astype(np.int64)
        n_high = np.add.reduceat(is_high, offsets[:-1]) * (lengths > 0)
        for row in np.flatnonzero(n_high).tolist():
            text_bytes = data[int(offsets[row]) : int(offsets[row + 1])].tobytes()
            hashes[row] = java_hash(decode_text(text_bytes)) & 0xFFFFFFFF
    return hashes.view(np.int32)


def appended_hashes(
    prefixes: NDArray[np.int32], suffixes: NDArray[np.int32], lengths: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return the hash codes of prefix + suffix, (n,).

    Args:
        prefixes: (n,), hash codes of the prefixes.
        suffixes: (n,), hash codes of the suffixes.
        lengths: (n,), lengths of the suffixes in UTF-16 code units.
    """
    shifted = prefixes.view(np.uint32) * _POWERS[lengths]
    return (shifted + suffixes.view(np.uint32)).view(np.int32)


def tags_code(tags: str | None) -> int:
    """Return what a ConsumeQueue unit holds for a tag: its hash code, or 0 if there is none.

    Source: MessageExtBrokerInner.java#tagsString2tagsCode.
    """
    return java_hash(tags) if tags else 0
