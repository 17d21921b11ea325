"""Bloom filters, in which a broker notes the consumer groups that a message may concern.

A bit map stands for the groups whose SQL92 expressions the message matches. Opens no file.

Source: BloomFilter.java, BitsArray.java, ExpressionMessageFilter.java.
"""

from __future__ import annotations

import mmh3

N_HASHES = 3  # Source: MessageStoreConfig's maxErrorRateOfBloomFilter, 20 (per cent) by default
_INT = 1 << 32


def bit_positions(group: str, topic: str, n_bits: int, n_hashes: int = N_HASHES) -> list[int]:
    """Return the positions of the bits that stand for a consumer group of a topic.

    Args:
        group: consumer group.
        topic: topic that the group subscribes to.
        n_bits: size of the bit map, at least 1.
        n_hashes: number of bits per group; several of them may be the same bit.
    """
    low = int(mmh3.hash64(f"{group}#{topic}".encode(), 0, x64arch=True, signed=False)[0])
    first = _as_int(low)
    second = _as_int(low >> 32)
    positions = []
    for number in range(1, n_hashes + 1):
        combined = _as_int(first + number * second)
        positions.append((combined if combined >= 0 else ~combined) % n_bits)
    return positions


def _as_int(number: int) -> int:
    """Return the lower 32 bits as Java's int."""
    lower = number & (_INT - 1)
    return lower - _INT if lower >= _INT // 2 else lower


def may_match(bit_map: bytes, group: str, topic: str) -> bool:
    """Tell whether a message may match a group's expression; only False is certain.

    Args:
        bit_map: bit map of the message's ext unit; if it is empty, the message may match.
        group: consumer group.
        topic: topic of the message.
    """
    return not bit_map or has_bits(bit_map, bit_positions(group, topic, 8 * len(bit_map)))


def has_bits(bit_map: bytes, positions: list[int]) -> bool:
    """Tell whether the bits at all positions are set.

    The lowest bit of the first byte has position 0.
    """
    return all(bit_map[position // 8] >> position % 8 & 1 for position in positions)
