"""Frames of RocketMQ's remoting protocol, to bytes and back; no socket is used here.

Only the JSON form of headers is written and read. A broker answers in the form of the request.

Source: RemotingCommand.java, RemotingSerializable.java, NettyDecoder.java.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from rmqstore.errors import MalformedBytesError

LENGTH_BYTES: Final = 4
# A table may be as long as this. Java limits what it receives to 16 MiB, not what it sends.
MAX_BODY_BYTES: Final = 64 << 20
MAX_HEADER_BYTES: Final = 1 << 20
_MAX_FRAME_BYTES: Final = LENGTH_BYTES + MAX_HEADER_BYTES + MAX_BODY_BYTES
_JSON: Final = 0
_TYPE_SHIFT: Final = 24
_HEADER_LENGTH: Final = (1 << _TYPE_SHIFT) - 1
_IS_ANSWER: Final = 1
_INT: Final = struct.Struct(">i")
_MAX_REMARK_CHARACTERS: Final = 500


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        code: 0 for success; see ``ResponseCode.java``.
        opaque: the number of the request.
        remark: why the request failed, empty if it did not.
        body: the bytes after the header.
    """

    code: int
    opaque: int
    remark: str
    body: bytes


def encode_request(
    code: int, opaque: int, fields: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    """Return the frame of a request.

    The body begins at a multiple of 8 bytes: the header has spaces before its end.
    """
    header = json.dumps(
        {
            "code": code,
            "flag": 0,
            "opaque": opaque,
            "language": "PYTHON",
            "version": 0,
            "serializeTypeCurrentRPC": "JSON",
            "extFields": dict(fields or {}),
        },
        separators=(",", ":"),
    ).encode()
    header = header[:-1] + b" " * (-len(header) % 8) + header[-1:]
    length = LENGTH_BYTES + len(header) + len(body)
    return _INT.pack(length) + _INT.pack(_JSON << _TYPE_SHIFT | len(header)) + header + body


def frame_length(head: bytes | bytearray) -> int:
    """Return how many bytes follow the first four of a frame.

    Raises:
        MalformedBytesError: no frame of the protocol has this length.
    """
    length: int = _INT.unpack(head)[0]
    if not LENGTH_BYTES <= length <= _MAX_FRAME_BYTES:
        raise MalformedBytesError(
            0, f"a frame of {length} bytes; {LENGTH_BYTES} to {_MAX_FRAME_BYTES} are possible"
        )
    return length


def decode_answer(frame: bytes | bytearray) -> Answer | None:
    """Return the answer in a frame, given without its first four bytes.

    Returns:
        None if the frame is a request, such as a broker sends to its clients.

    Raises:
        MalformedBytesError: the bytes are not a frame with a JSON header.
    """
    marked: int = _INT.unpack_from(frame)[0]
    kind, size = marked >> _TYPE_SHIFT & 0xFF, marked & _HEADER_LENGTH
    if kind != _JSON:
        raise MalformedBytesError(0, f"a header of type {kind}, and JSON is expected")
    if size > min(len(frame) - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise MalformedBytesError(0, f"a header of {size} bytes in a frame of {len(frame)}")
    stop = LENGTH_BYTES + size
    try:
        header = json.loads(frame[LENGTH_BYTES:stop])
    except (ValueError, RecursionError) as err:
        raise MalformedBytesError(LENGTH_BYTES, f"the header is not JSON: {err}") from err
    if not isinstance(header, dict):
        raise MalformedBytesError(LENGTH_BYTES, "the header is not a JSON object")
    code, opaque, flag = (header.get(name) for name in ("code", "opaque", "flag"))
    if not (type(code) is int and type(opaque) is int and type(flag) is int):
        raise MalformedBytesError(LENGTH_BYTES, "the header has no code, opaque and flag")
    if not flag & _IS_ANSWER:
        return None
    remark = str(header.get("remark") or "")[:_MAX_REMARK_CHARACTERS]
    return Answer(code, opaque, remark, bytes(memoryview(frame)[stop:]))
