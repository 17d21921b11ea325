"""Compressed bodies, by the codec that sysFlag names.

The libraries are imported when they are first needed, for most stores need none.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from rmqstore.errors import OptionError
from rmqstore.format.layout import MAX_BODY_BYTES, SysFlag


def decompress(stored: bytes, sys_flag: int) -> bytes:
    """Return the body as its sender gave it.

    An empty body is as it is, whatever sysFlag says. Of LZ4 and ZSTD several frames may follow one
    another, of ZLIB the first stream counts.

    Args:
        stored: the body as it is on disk.
        sys_flag: sysFlag of the record; the COMPRESSED bit is ignored.

    Raises:
        ValueError: the codec is unknown, or the bytes do not inflate, or to more than
            MAX_BODY_BYTES.

    Source: MessageDecoder.java#decode, CompressionType.java#findByValue, CompressorFactory.java.
    """
    codec = sys_flag & SysFlag.COMPRESSION_TYPE
    if not stored:
        return b""
    if codec in (0, SysFlag.COMPRESSION_ZLIB):
        inflater = zlib.decompressobj()
        try:
            body = inflater.decompress(stored, MAX_BODY_BYTES)
        except zlib.error as err:
            raise ValueError(f"body does not inflate as ZLIB: {err}") from err
        return _whole(body, complete=inflater.eof, codec="ZLIB")
    if codec == SysFlag.COMPRESSION_LZ4:
        return _of_frames(stored, _inflate_lz4, codec="LZ4")
    if codec == SysFlag.COMPRESSION_ZSTD:
        return _of_frames(stored, _inflate_zstd, codec="ZSTD")
    raise ValueError(f"sysFlag {sys_flag:#x} names an unknown compression type {codec >> 8}")


# What follows a frame is copied, so that very many small ones would take a long time.
_MAX_FRAMES = 64

_ZLIB_LEVEL = 5  # Source: DefaultMQProducer.java#compressLevel


def compressor(codec: str) -> tuple[Callable[[bytes], bytes] | None, int]:
    """Return the function that compresses bodies, and the bits of sysFlag for its codec.

    The function is None for the codec ``none``.

    Raises:
        OptionError: the codec is unknown.

    Source: CompressorFactory.java.
    """
    if codec == "none":
        return None, 0
    if codec == "zlib":
        return lambda body: zlib.compress(body, _ZLIB_LEVEL), int(SysFlag.COMPRESSION_ZLIB)
    if codec == "lz4":
        import lz4.frame

        return lz4.frame.compress, int(SysFlag.COMPRESSION_LZ4)
    if codec == "zstd":
        import zstandard

        return zstandard.ZstdCompressor().compress, int(SysFlag.COMPRESSION_ZSTD)
    raise OptionError(f"`compression` {codec!r}: must be one of none, zlib, lz4, zstd")


def _of_frames(
    stored: bytes, inflate: Callable[[bytes], tuple[bytes, bytes]], *, codec: str
) -> bytes:
    """Return the inflated bytes of consecutive frames.

    Args:
        inflate: returns what the first frame inflates to, and the bytes after it.
        codec: the name of the codec.
    """
    parts: list[bytes] = []
    rest = stored
    while rest:
        if len(parts) == _MAX_FRAMES:
            raise ValueError(f"body has more than {_MAX_FRAMES} {codec} frames")
        part, rest = inflate(rest)
        parts.append(part)
        _whole(b"", complete=sum(map(len, parts)) <= MAX_BODY_BYTES, codec=codec)
    return b"".join(parts)


def _inflate_lz4(stored: bytes) -> tuple[bytes, bytes]:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    try:
        # LZ4 expands by a factor of 255 at most, and the library allocates the limit that it is
        # given at once.
        body = inflater.decompress(stored, min(MAX_BODY_BYTES, 255 * len(stored) + 64))
    except RuntimeError as err:
        raise ValueError(f"body does not inflate as LZ4: {err}") from err
    return _whole(body, complete=inflater.eof, codec="LZ4"), inflater.unused_data or b""


def _inflate_zstd(stored: bytes) -> tuple[bytes, bytes]:
    import zstandard

    # Without this bound a hostile frame header could request gigabytes before the first byte.
    codec = zstandard.ZstdDecompressor(max_window_size=MAX_BODY_BYTES)
    try:
        if len(stored) > _ZSTD_SMALL:
            inflated = 0
            for chunk in codec.read_to_iter(stored):
                inflated += len(chunk)
                if inflated > MAX_BODY_BYTES:
                    _whole(b"", complete=False, codec="ZSTD")
        inflater = codec.decompressobj()
        body = inflater.decompress(stored)
    except zstandard.ZstdError as err:
        raise ValueError(f"body does not inflate as ZSTD: {err}") from err
    return _whole(body, complete=inflater.eof, codec="ZSTD"), inflater.unused_data


# A block has at least 4 bytes and inflates to at most 128 KiB, so a frame of at most this size does
# not exceed MAX_BODY_BYTES.
_ZSTD_SMALL = MAX_BODY_BYTES // (128 << 10) * 4


def _whole(body: bytes, *, complete: bool, codec: str) -> bytes:
    if not complete:
        raise ValueError(
            f"body is not one complete {codec} stream of at most {MAX_BODY_BYTES} bytes"
        )
    return body
