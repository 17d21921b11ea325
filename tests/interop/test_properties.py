"""RocketMQ's own decoder judges how damaged property strings are read, by record and by column."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import numpy as np
import pytest

from interop.rocketmq import RocketMQ
from rmqstore.format.columns.property_decode import parse_entries, property_column, property_map
from rmqstore.format.text import parse_properties

pytestmark = pytest.mark.interop

STORED = [
    text.encode()
    for text in (
        "TAGS\x01a\x02UNIQ_KEY\x017F000001\x02k\x01v\x02", "größe\x01消息\x02k\x01\U0001f600x\x02",
        "a\x01b\x02c\x01d", "",
    )
]  # fmt: skip
PIECES = [
    b"\x01", b"\x02", b"\x01\x02", b"\x02\x01", b"\0", b"a", b"TAGS", b"k\x01v\x02", b"\xff",
    b"\x80", b"\xc3", b"\xc0\x80", b"\xe0\x80\x80", b"\xe6\xb6", b"\xed", b"\xed\xa0",
    b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf0\x9f", b"\xf0\x9f\x98",
    b"\xf4\x90\x80\x80", b"\xf5", b"\xf8\x88\x80\x80\x80", b"\xef\xbf\xbd", b"\xef\xbb\xbf",
]  # fmt: skip


def damaged(rng: random.Random) -> bytes:
    """Return a property string with flipped bits and separators, and parts inserted and removed."""
    text = bytearray(rng.choice(STORED))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        if at < len(text) and rng.random() < 0.5:
            text[at] ^= rng.choice((1 << rng.randrange(8), rng.randrange(1, 256), 3))
        else:
            text[at : at + rng.randrange(3)] = rng.choice(PIECES)
    return bytes(text)


def by_rocketmq(real: RocketMQ, stored: bytes) -> dict[str, str]:
    alibaba = real._gateway.jvm.com.alibaba
    spell = alibaba.fastjson2.JSON if real.version >= "5" else alibaba.fastjson.JSON
    decoder = real.rocketmq.common.message.MessageDecoder
    text = real.java.lang.String(stored, "UTF-8")
    return dict(
        json.loads(spell.toJSONString(decoder.string2messageProperties(text)), strict=False)
    )


def by_columns(stored: Sequence[bytes]) -> list[dict[str, str]]:
    lengths = np.array([len(text) for text in stored], np.int64)
    entries = parse_entries(
        np.frombuffer(b"".join(stored), np.uint8), np.cumsum(lengths) - lengths, lengths
    )
    found = [dict(row) for row in property_map(entries).to_pylist()]
    tags = property_column(entries, "TAGS").to_pylist()
    assert tags == [row.get("TAGS") for row in found]
    return found


@pytest.mark.parametrize("version", ["rocketmq", "rocketmq_4", "rocketmq_55"])
def test_damaged_property_strings_are_read_as_rocketmq_reads_them(
    real_mq: RocketMQ, version: str
) -> None:
    rng = random.Random(version)
    stored = [damaged(rng) for _ in range(1500)]
    expected = [by_rocketmq(real_mq, text) for text in stored]
    assert sum(map(len, expected)) > 1500
    assert any("\ufffd" in text for row in expected for pair in row.items() for text in pair)
    assert [parse_properties(text) for text in stored] == expected
    assert by_columns(stored) == expected
    assert [by_columns([text])[0] for text in stored[:500]] == expected[:500]
