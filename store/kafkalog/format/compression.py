"""Compressed records, by the codec that a batch names; what comes out is bounded.

The libraries are imported when they are first needed, for many logs need none.
"""

from __future__ import annotations

import struct
import threading
import zlib
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from kafkalog.format.layout import MAX_INFLATED_BYTES, Codec
from kafkalog.format.varints import read_unsigned
from rmqstore.errors import MalformedBytesError

_FIRST_GUESS = 4  # times the stored bytes
_LEAST_CHUNK = 64 << 10


def inflate(stored: memoryview, codec: int, magic: int, limit: int = MAX_INFLATED_BYTES) -> bytes:
    """Return what was compressed.

    Args:
        stored: the records of a batch, or the value of a message that wraps others.
        codec: one of ``Codec``.
        magic: format of the batch.
        limit: the most bytes that may come out.

    Raises:
        ValueError: the codec is unknown, or the bytes do not inflate, or to more than ``limit``.

    Source: CompressionType.java, the classes of common/compress.
    """
    if codec == Codec.GZIP:
        return _inflate_gzip(stored, limit)
    if codec == Codec.SNAPPY:
        return _inflate_snappy(stored, limit)
    if codec == Codec.LZ4:
        if magic == 0:
            stored = mend_frame_head(stored)
        return _inflate_lz4(stored, limit)
    if codec == Codec.ZSTD and magic >= 2:
        return _inflate_zstd(stored, limit)
    raise ValueError(f"compression type {codec} is unknown in format v{min(magic, 2)}")


class _Output:
    """The inflated parts, whose total size has a limit."""

    def __init__(self, stored: memoryview, limit: int, codec: str) -> None:
        self.parts: list[bytes] = []
        self.chunk = max(_FIRST_GUESS * len(stored), _LEAST_CHUNK)
        self._n_bytes = 0
        self._limit = limit
        self._codec = codec

    def add(self, part: bytes) -> None:
        """Take a part; the next one may be longer."""
        self._n_bytes += len(part)
        self.refuse(self._n_bytes)
        self.parts.append(part)
        self.chunk = min(2 * self.chunk, self._limit + 1)

    def refuse(self, n_bytes: int) -> None:
        """Raise an error if so much is more than the limit."""
        if n_bytes > self._limit:
            raise ValueError(f"{self._codec} inflates to more than {self._limit} bytes")

    def joined(self) -> bytes:
        return b"".join(self.parts)


def _inflate_gzip(stored: memoryview, limit: int) -> bytes:
    """Inflate one or more members of gzip."""
    library: Any = zlib
    try:
        from isal import isal_zlib
    except ImportError:
        pass
    else:
        library = isal_zlib  # which is faster
    output = _Output(stored, limit, "gzip")
    rest: Any = stored
    while True:
        inflater = library.decompressobj(wbits=31)
        try:
            while not inflater.eof:
                part = inflater.decompress(rest, output.chunk)
                rest = inflater.unconsumed_tail
                if not part and not inflater.eof and not rest:
                    raise ValueError("gzip ends within its data")
                output.add(part)
        except library.error as err:
            raise ValueError(f"gzip does not inflate: {err}") from err
        rest = inflater.unused_data
        if not rest:
            return output.joined()


_SNAPPY_MAGIC = b"\x82SNAPPY\0"
_SNAPPY_HEAD_BYTES = len(_SNAPPY_MAGIC) + 8  # two versions


def _inflate_snappy(stored: memoryview, limit: int) -> bytes:
    """Inflate blocks in the framing of snappy-java, or one block without any framing."""
    output = _Output(stored, limit, "snappy")
    codec = pa.Codec("snappy")
    if stored[: len(_SNAPPY_MAGIC)] != _SNAPPY_MAGIC:
        output.add(_inflate_block(stored, codec, output))
        return output.joined()
    position = 0
    while position < len(stored):
        if stored[position : position + len(_SNAPPY_MAGIC)] == _SNAPPY_MAGIC:
            position += _SNAPPY_HEAD_BYTES
            continue
        if position + 4 > len(stored):
            raise ValueError("snappy ends within the length of a block")
        (length,) = struct.unpack_from(">i", stored, position)
        position += 4
        if not 0 <= length <= len(stored) - position:
            raise ValueError(f"snappy has a block of {length} bytes")
        output.add(_inflate_block(stored[position : position + length], codec, output))
        position += length
    return output.joined()


def _inflate_block(block: memoryview, codec: pa.Codec, output: _Output) -> bytes:
    try:
        n_bytes, start = read_unsigned(block, 0)
        output.refuse(n_bytes)
        if not n_bytes:
            if start != len(block):
                raise ValueError("snappy has an empty block with data")
            return b""
        if n_bytes > _SNAPPY_FACTOR * len(block):
            raise ValueError(f"snappy has a block of {len(block)} bytes for {n_bytes} bytes")
        inflated: bytes = codec.decompress(block, n_bytes, asbytes=True)
    except (OSError, pa.ArrowInvalid, MalformedBytesError) as err:
        raise ValueError(f"snappy does not inflate: {err}") from err
    return inflated


_SNAPPY_FACTOR = 64  # a copy of 64 bytes takes at least two bytes


def _inflate_lz4(stored: memoryview, limit: int) -> bytes:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    output = _Output(stored, limit, "lz4")
    rest: Any = stored
    try:
        while not inflater.eof:
            part = inflater.decompress(rest, output.chunk)
            if not part and not inflater.eof and inflater.needs_input:
                raise ValueError("lz4 ends within its frame")
            rest = b""
            output.add(part)
    except RuntimeError as err:
        raise ValueError(f"lz4 does not inflate: {err}") from err
    return output.joined()


def _inflate_zstd(stored: memoryview, limit: int) -> bytes:
    """Inflate one or more frames of zstd."""
    import zstandard

    output = _Output(stored, limit, "zstd")
    try:
        with _codecs.zstd.stream_reader(stored, read_across_frames=True) as reader:
            while part := reader.read(output.chunk):
                output.add(part)
    except zstandard.ZstdError as err:
        raise ValueError(f"zstd does not inflate: {err}") from err
    return output.joined()


_ZSTD_WINDOW = 128 << 20


class _Codecs(threading.local):
    """Codecs of one thread, which take as long to make as a small batch to inflate."""

    @cached_property
    def zstd(self) -> Any:  # noqa: ANN401 - the library is optional
        import zstandard

        # Without this bound a hostile frame could request gigabytes before the first byte.
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)


_codecs = _Codecs()

# The check byte of frames in format v0 is wrong: clients of that time computed it over the magic as
# well, and readers ignore it. The library does not, so it is computed again.
_LZ4_MAGIC_BYTES: Final = 4
_LZ4_CONTENT_SIZE: Final = 0x08  # in the flags: eight bytes of content size follow
_MASK = 0xFFFF_FFFF
_PRIME_2 = 2246822519
_PRIME_3 = 3266489917
_PRIME_4 = 668265263
_PRIME_5 = 374761393
_PRIME_1 = 2654435761


def mend_frame_head(stored: memoryview) -> memoryview:
    """Return an LZ4 frame with the check byte that the format of frames asks for.

    Source: KafkaLZ4BlockInputStream.java#readHeader.
    """
    if len(stored) < _LZ4_MAGIC_BYTES + 3:
        return stored
    end = _LZ4_MAGIC_BYTES + 2 + (8 if stored[_LZ4_MAGIC_BYTES] & _LZ4_CONTENT_SIZE else 0)
    if len(stored) <= end:
        return stored
    mended = bytearray(stored)
    mended[end] = xxhash32(bytes(stored[_LZ4_MAGIC_BYTES:end])) >> 8 & 0xFF
    return memoryview(mended)


def xxhash32(data: bytes) -> int:
    """Return the hash of less than 16 bytes by xxHash32 with the seed 0."""
    assert len(data) < 16
    total = (_PRIME_5 + len(data)) & _MASK
    n_in_words = len(data) // 4 * 4
    for at in range(0, n_in_words, 4):
        word = int.from_bytes(data[at : at + 4], "little")
        total = _rotate((total + word * _PRIME_3) & _MASK, 17) * _PRIME_4 & _MASK
    for byte in data[n_in_words:]:
        total = _rotate((total + byte * _PRIME_5) & _MASK, 11) * _PRIME_1 & _MASK
    total = (total ^ total >> 15) * _PRIME_2 & _MASK
    total = (total ^ total >> 13) * _PRIME_3 & _MASK
    return total ^ total >> 16


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _MASK
