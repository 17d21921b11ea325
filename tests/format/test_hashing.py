"""Checksums and hashes, compared with implementations that share no code with ours."""

from __future__ import annotations

import base64
import random
import zlib

import numpy as np
import pytest
from crcmod.predefined import mkPredefinedCrcFun

import goldens
from rmqstore.format import hashing
from rmqstore.format.hashing import body_crc, body_crcs, java_hashes

REFERENCE = mkPredefinedCrcFun("crc-32")


@pytest.fixture(params=["as installed", "zlib"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with the library of the extra ``fast``, if it is installed, and without it."""
    if request.param == "zlib":
        monkeypatch.setattr(hashing, "crc32", zlib.crc32)


def some_bytes() -> list[bytes]:
    source = random.Random(7)
    lengths = [*range(70), 255, 256, 257, 4095, 4096, 4097, 1 << 20]
    return [source.randbytes(length) for length in lengths]


@pytest.mark.usefixtures("implementation")
def test_checksums_are_those_of_the_reference() -> None:
    bodies = some_bytes()
    expected = [REFERENCE(body) & 0x7FFFFFFF for body in bodies]
    assert [body_crc(body) for body in bodies] == expected
    assert [body_crc(memoryview(body)) for body in bodies] == expected
    assert body_crcs(bodies).tolist() == expected
    assert body_crcs([]).tolist() == []
    assert expected[0] == 0
    assert any(REFERENCE(body) > 0x7FFFFFFF for body in bodies)


def test_the_check_value_is_that_of_crc_32() -> None:
    assert REFERENCE(b"123456789") == 0xCBF43926
    assert body_crc(b"123456789") == 0x4BF43926


@pytest.mark.parametrize("name", ["basic", "edges", "v49"])
def test_checksums_are_those_that_the_broker_stored(name: str) -> None:
    rows = [row for row in goldens.lines(name, "expected") if row["sysFlag"] & 1 == 0]
    assert len(rows) > 30
    for row in rows:
        body = base64.b64decode(row["bodyBase64"])
        assert body_crc(body) == row["bodyCRC"] == REFERENCE(body) & 0x7FFFFFFF


def test_many_keys_have_the_hashes_of_java() -> None:
    """Together they are longer than what is hashed at once."""
    texts = [f"TopicA#key-{number:05d}" for number in range(9000)]
    texts[5:8] = ["", "größer", "\U0001f600"]
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)])
    assert offsets[-1] > 2 << 16
    hashes = java_hashes(np.frombuffer(b"".join(encoded), np.uint8), offsets)
    assert hashes.tolist() == [of_java(text) for text in texts]


def of_java(text: str) -> int:
    code = 0
    for high, low in zip(*[iter(text.encode("utf-16-be"))] * 2, strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code - (code >> 31 << 32)
