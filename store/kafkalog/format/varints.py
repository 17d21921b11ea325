"""Numbers of variable length: seven bits a byte, the least first, zigzag coded."""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmqstore.errors import MalformedBytesError

MOST_BYTES: Final = 5
_MOST_BYTES_LONG = 10


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return a number of 32 bits and the position after it.

    A coding that is longer than necessary is accepted, and bits above the 32 are dropped.

    Raises:
        MalformedBytesError: the number does not end within five bytes, or not within the data.

    Source: ByteUtils.java#readVarint.
    """
    raw, end = _read(data, position, MOST_BYTES)
    raw &= 0xFFFF_FFFF
    return (raw >> 1) ^ -(raw & 1), end


def read_varlong(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return a number of 64 bits and the position after it; see :func:`read_varint`.

    Source: ByteUtils.java#readVarlong.
    """
    raw, end = _read(data, position, _MOST_BYTES_LONG)
    raw &= 0xFFFF_FFFF_FFFF_FFFF
    return (raw >> 1) ^ -(raw & 1), end


def read_unsigned(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return a number of 32 bits that is not zigzag coded, and the position after it.

    Source: ByteUtils.java#readUnsignedVarint.
    """
    raw, end = _read(data, position, MOST_BYTES)
    return raw & 0xFFFF_FFFF, end


def _read(data: bytes | memoryview, position: int, most_bytes: int) -> tuple[int, int]:
    raw = shift = 0
    for at in range(position, position + most_bytes):
        if at >= len(data):
            raise MalformedBytesError(position, "the data ends within a number")
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, at + 1
        shift += 7
    raise MalformedBytesError(position, f"a number is longer than {most_bytes} bytes")


# Many numbers at once, each from the eight bytes that begin with it.

WORD_BYTES: Final = 8
_HIGH_BITS: Final = np.uint64(0x8080_8080_8080_8080)
_LOW_32: Final = np.uint64(0xFFFF_FFFF)
_ONE: Final = np.uint64(1)
_THREE: Final = np.uint64(3)
# Two neighbouring groups are joined in each step: of 7 bits in 8, of 14 in 16, of 28 in 32.
_JOINS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F_007F_007F_007F, 0x7F00_7F00_7F00_7F00, 1),
        (0x0000_3FFF_0000_3FFF, 0x3FFF_0000_3FFF_0000, 2),
        (0x0000_0000_0FFF_FFFF, 0x0FFF_FFFF_0000_0000, 4),
    )
)
_SHORT_LOW: Final = np.uint64(0x7F)
_SHORT_HIGH: Final = np.uint64(0x3F80)

Words = NDArray[np.uint64]


def word_view(data: NDArray[np.uint8]) -> Words:
    """Return a view whose item *i* is the eight bytes from *i* on, (nbytes - 7,)."""
    count = max(len(data) - WORD_BYTES + 1, 0)
    return np.ndarray((count,), np.dtype("<u8"), data, 0, (1,))


def word_view_16(data: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return a view whose item *i* is the two bytes from *i* on, (nbytes - 1,)."""
    return np.ndarray((max(len(data) - 1, 0),), np.dtype("<u2"), data, 0, (1,))


@cache
def short_numbers() -> NDArray[np.int64]:
    """Return a table of the numbers that two bytes begin with, (65536,).

    Two bytes are looked up as a little-endian number. An entry is the number times 256, plus the
    bits of its coding, 8 or 16. If the number does not end within two bytes, the entry is 0.
    """
    pairs = np.arange(1 << 16, dtype=np.uint64)
    is_one = pairs & np.uint64(0x80) == 0
    is_two = ~is_one & (pairs < np.uint64(0x8000))
    low = pairs & _SHORT_LOW
    raw = np.where(is_one, low, low | ((pairs >> _ONE) & _SHORT_HIGH))
    entries = (unzigzag(raw) << 8) | np.where(is_one, 8, 16)
    return np.where(is_one | is_two, entries, 0)


def decode_words(words: Words) -> tuple[NDArray[np.int64], Words]:
    """Decode the number at the low end of each word.

    Returns:
        Numbers of up to 56 bits, and the bytes of each, (n,). If none of the eight bytes ends the
        number, it means nothing and has eight bytes.
    """
    entries = short_numbers().take(words.astype(np.uint16))
    if not entries.all():
        return decode_long(words)
    return entries >> 8, ((entries & 0xFF) >> 3).view(np.uint64)


def decode_long(words: Words) -> tuple[NDArray[np.int64], Words]:
    """Decode numbers of any length as :func:`decode_words` does; slower."""
    stops = ~words & _HIGH_BITS
    mask = stops ^ (stops - _ONE)
    n_bytes = (np.bitwise_count(mask) >> np.uint8(3)).astype(np.uint64)
    raw = words & (mask & ~_HIGH_BITS)
    for low, high, shift in _JOINS:
        raw = (raw & low) | ((raw & high) >> shift)
    return unzigzag(raw), n_bytes


def unzigzag(raw: Words) -> NDArray[np.int64]:
    """Return the signed numbers, (n,)."""
    return (raw >> _ONE).view(np.int64) ^ -(raw & _ONE).view(np.int64)


def low_32_bits(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what 32 bits hold of numbers that :func:`decode_words` decoded, (n,)."""
    if int(numbers.min(initial=0)) >= -(1 << 31) and int(numbers.max(initial=0)) < 1 << 31:
        return numbers
    raw = (numbers << 1) ^ (numbers >> 63)
    return unzigzag(raw.view(np.uint64) & _LOW_32)


def shift_out(words: Words, n_bytes: Words) -> Words:
    """Return words without their lowest bytes, (n,)."""
    return words >> (n_bytes << _THREE)
