"""The keys under which the index knows records, and their hashes.

Source: IndexService.java#buildIndex, #buildKey; IndexFile.java#indexKeyHashMethod.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmqstore.format.columns.buffers import array_bytes, booleans, find_byte, mask_of, numbers
from rmqstore.format.hashing import appended_hashes, java_hash, java_hashes
from rmqstore.format.layout import Mask, Positions
from rmqstore.format.utf8 import decode_text

_KEY_SEPARATOR = ord(" ")
_TAG_TYPE, _TYPE_SEPARATOR = "T", "#"  # Source: MessageConst.java#INDEX_TAG_TYPE


def index_keys(
    names: list[str],
    codes: NDArray[np.int32],
    indexed: Mask,
    uniq_keys: pa.StringArray | None,
    keys: pa.StringArray | None,
    tags: pa.StringArray | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the record and the hash of each key, (m,), record by record.

    The UNIQ_KEY of a record comes first, then each of its KEYS, then the key of its tags.

    Args:
        names: the distinct topics.
        codes: (n,), the index in ``names`` of each record's topic.
        indexed: (n,), False for records that are not indexed.
        uniq_keys, keys: the properties UNIQ_KEY and KEYS, string (n,), null where a record lacks
            them; None if no record has them.
        tags: the property TAGS in the same form; None if tags are not indexed.
    """
    kinds = [_single_keys(uniq_keys, indexed), _split_keys(keys, indexed)]
    if tags is not None:
        tag_rows, chosen_tags = _single_keys(tags, indexed)
        kinds.append((tag_rows, tag_keys(chosen_tags)))
    kinds = [(of_rows, texts) for of_rows, texts in kinds if len(of_rows)]
    every = np.arange(len(codes), dtype=np.int32)
    if all(np.array_equal(of_rows, every) for of_rows, _ in kinds):  # mostly
        hashed = [topic_key_hashes(names, codes, *hash_texts(texts)) for _, texts in kinds]
        columns = np.column_stack(hashed) if hashed else np.empty(0, np.int32)
        return np.repeat(every, len(kinds)), columns.ravel()
    counts = [np.bincount(of_rows, minlength=len(codes)) for of_rows, _ in kinds]
    ends = [np.cumsum(count) for count in counts]
    rows = np.empty(sum(len(of_rows) for of_rows, _ in kinds), np.int32)
    hashes = np.empty(len(rows), np.int32)
    for kind, (of_rows, texts) in enumerate(kinds):
        # A key's place: all keys of the records before it, and its own record's keys before it.
        places = np.arange(len(of_rows))
        for other, (count, end) in enumerate(zip(counts, ends, strict=True)):
            if other != kind:
                places += (end if other < kind else end - count)[of_rows]
        rows[places] = of_rows
        hashes[places] = topic_key_hashes(names, codes[of_rows], *hash_texts(texts))
    return rows, hashes


def tag_key(tags: str) -> str:
    """Return the key of tags; see :func:`tag_keys`."""
    return f"{_TAG_TYPE}{_TYPE_SEPARATOR}{tags}"


def tag_keys(tags: pa.StringArray) -> pa.StringArray:
    """Return the keys under which brokers from 5.4 on index tags, without their topic.

    Source: IndexService.java#buildIndex, #buildKey.
    """
    return pc.binary_join_element_wise(_TAG_TYPE, tags, _TYPE_SEPARATOR)


def _single_keys(keys: pa.StringArray | None, indexed: Mask) -> tuple[Positions, pa.StringArray]:
    """Return the records that have a key, and their keys."""
    if keys is None:
        return np.empty(0, np.int64), pa.nulls(0, pa.string())
    is_key = indexed & (np.diff(array_bytes(keys)[1]) > 0)
    if keys.null_count:
        is_key &= mask_of(keys.is_valid())
    rows = np.flatnonzero(is_key)
    return rows, keys if len(rows) == len(keys) else keys.take(numbers(rows))


def _split_keys(keys: pa.StringArray | None, indexed: Mask) -> tuple[Positions, pa.StringArray]:
    """Return KEYS split at their spaces: the record of each key, and the keys; none is empty."""
    rows, keys = _single_keys(keys, indexed)
    data, offsets = array_bytes(keys)
    used = data[int(offsets[0]) : int(offsets[-1])]
    spaces = find_byte(used, _KEY_SEPARATOR) + int(offsets[0])
    if not len(spaces):
        return rows, keys
    # Every space ends a key and becomes a key of its own, which is left out again.
    bounds = np.sort(np.concatenate((offsets, spaces, spaces + 1))).astype(np.int32)
    starts, lengths = bounds[:-1], np.diff(bounds)
    is_key = (lengths > 0) & (data[np.minimum(starts, len(data) - 1)] != _KEY_SEPARATOR)
    parts = pa.Array.from_buffers(
        pa.string(), len(starts), [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    key_of_part = np.searchsorted(offsets, starts[is_key], side="right") - 1
    return rows[key_of_part], parts.filter(booleans(is_key))


def key_hashes(topics: list[str], keys: list[str]) -> NDArray[np.int32]:
    """Return the hash in the index of every key under every topic, never negative.

    Returns:
        int32 (len(topics), len(keys)).

    Source: IndexService.java#buildKey; IndexFile.java#indexKeyHashMethod.
    """
    n_topics = len(topics)
    suffixes, lengths = hash_texts(pa.array(keys, pa.string()))
    codes = np.repeat(np.arange(n_topics, dtype=np.int32), len(keys))
    hashes = topic_key_hashes(
        topics, codes, np.tile(suffixes, n_topics), np.tile(lengths, n_topics)
    )
    return hashes.reshape(n_topics, len(keys))


def topic_key_hashes(
    names: list[str],
    codes: NDArray[np.int32],
    suffixes: NDArray[np.int32],
    lengths: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Return the hashes in the index of ``topic#key``, (m,).

    Args:
        names: the distinct topics.
        codes: (m,), the index in ``names`` of each key's topic.
        suffixes: (m,), hash codes of the keys.
        lengths: (m,), lengths of the keys in UTF-16 code units.
    """
    prefixes = np.array([java_hash(f"{name}#") for name in names] or [0], np.int32)[codes]
    hashes = appended_hashes(prefixes, suffixes, lengths)
    absolute = np.where(hashes == np.iinfo(np.int32).min, 0, np.abs(hashes))
    return absolute.astype(np.int32)


def hash_texts(texts: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the hash codes of strings, and their lengths in UTF-16 code units."""
    data, offsets = array_bytes(texts)
    lengths = np.diff(offsets)
    if len(data) and (data[int(offsets[0]) : int(offsets[-1])] & 0x80).any():
        stored = pa.Array.from_buffers(
            pa.binary(), len(texts), texts.buffers(), offset=texts.offset
        )
        decoded = [decode_text(text) for text in stored.to_pylist()]
        n_units = [len(text.encode("utf-16-be", "surrogatepass")) // 2 for text in decoded]
        lengths = np.array(n_units, np.int64)
    return java_hashes(data, offsets), lengths
