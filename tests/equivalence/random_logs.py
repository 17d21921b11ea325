"""Random bytes to compare the plain and the columnar forms on: seeded, and built by hand."""

from __future__ import annotations

import random

import numpy as np

import store_builder as build
from rmqstore.format.columns.walk import StopKind, walk_each, walk_plainly
from rmqstore.format.framing import Framing

NAMES = (
    b"TAGS", b"KEYS", b"UNIQ_KEY", b"CLUSTER", b"WAIT", b"__CRC32#", b"k", "키".encode(),
    b"\xff\xfe", b"",
)  # fmt: skip
VALUES = (
    b"a", b"", b"value with blanks", b"\x00\x00", "тег".encode(), b"\xe2\x82", b"\xc0\x80",
    b"x" * 300, b"1", b"\xed\xa0\x80",
)  # fmt: skip


def random_properties(rng: random.Random) -> bytes:
    """Return a property string: usual or odd in every way that the parser has to bear."""
    kind = rng.randrange(8)
    if kind == 0:
        return b""
    if kind == 1:  # noise rich in separators
        noise = b"\x01\x01\x02\x02\x00abTAGS\xff\xc3\xa4"
        return bytes(rng.choice(noise) for _ in range(rng.randrange(1, 60)))
    if kind == 2:
        return rng.choice(
            (
                b"\x02", b"\x01", b"\x01\x02", b"\x02\x02\x02", b"TAGS", b"TAGS\x01", b"\x01a\x02",
                b"a\x01b\x01c\x02",
            )
        )  # fmt: skip
    count = rng.randrange(1, 8) if kind < 7 else 80  # more names than a row's bit set holds
    pairs = [
        (rng.choice(NAMES) if kind < 7 else f"n{rng.randrange(100)}".encode())
        + rng.choice((b"\x01",) * 6 + (b"", b"\x01\x01"))
        + rng.choice(VALUES)
        for _ in range(count)
    ]
    text = b"\x02".join(pairs)
    return text + rng.choice((b"\x02", b"\x02", b"\x02", b"", b"\x02\x02"))


def uniform_properties(rng: random.Random, template: list[str]) -> bytes:
    """Return properties of the template's names in its order, as those of one producer."""
    return b"".join(
        name.encode()
        + b"\x01"
        + bytes(rng.choice(b"abcXYZ019\xc3\xa4") for _ in range(rng.randrange(1, 40)))
        + b"\x02"
        for name in template
    )


def random_record(rng: random.Random, stored: bytes) -> build.Record:
    """Return a record with the given properties; everything else is random within what is valid."""

    def host() -> tuple[bytes, int]:
        return rng.randbytes(rng.choice((4, 4, 16))), rng.choice(
            (10911, 0, 65535, 70000, -1, rng.getrandbits(31))
        )

    version = rng.choice((build.V1, build.V1, build.V2))
    longest = 127 if version == build.V1 else 300
    topic = rng.choice(
        (b"TopicA", b"t", "Тема".encode(), b"", b"x" * rng.randrange(1, longest), b"bad\xff\xc3utf")
    )
    body = rng.choice(
        (b"", rng.randbytes(rng.randrange(1, 200)), b"text " * rng.randrange(1, 40), fake_head(rng))
    )
    return build.Record(
        topic=topic,
        queue_id=rng.choice((0, 1, 7, -1, rng.getrandbits(31))),
        queue_offset=rng.choice((0, rng.getrandbits(62), rng.randrange(1000))),
        body=body,
        properties=stored,
        flag=rng.getrandbits(32) - (1 << 31),
        sys_flag=rng.choice((0, 0, 2, 4, 8, 12, 0x40, 0x80)),
        born_timestamp=rng.choice((0, build.T0, rng.randrange(1 << 47), -5_000)),
        store_timestamp=rng.choice(
            (0, build.T0, rng.randrange(1 << 47), 253_402_300_799_999, -62_135_596_800_000)
        ),
        born_host=host(),
        store_host=host(),
        reconsume_times=rng.choice((0, 3, -1, rng.getrandbits(31))),
        prepared_transaction_offset=rng.choice((0, rng.getrandbits(60), -1)),
        magic=version,
        prop_crc=rng.random() < 0.2,
    )


def fake_head(rng: random.Random) -> bytes:
    """Return a body that looks like a record, or begins like one."""
    inner = build.pack(
        build.Record(body=rng.randbytes(20), properties=b"TAGS\x01fake\x02"), rng.randrange(1 << 20)
    )
    return inner[: rng.choice((8, 40, len(inner)))]


def random_log(seed: int, n_records: int, base: int = 0) -> tuple[bytes, list[int]]:
    """Return the bytes of a file and where its records begin.

    With every third seed all records have the same property names.
    """
    rng = random.Random(seed)
    template = rng.sample(
        ["TAGS", "KEYS", "UNIQ_KEY", "CLUSTER", "größe", "a"], rng.randrange(1, 6)
    )
    uniform = seed % 3 == 0
    packed, starts = bytearray(rng.randbytes(rng.choice((0, 0, 7)))), []
    for _ in range(n_records):
        stored = uniform_properties(rng, template) if uniform else random_properties(rng)
        record = random_record(rng, stored)
        if uniform:
            record = build.replace(record, prop_crc=False)
        starts.append(len(packed))
        packed += build.pack(record, base + len(packed))
    packed += rng.choice((b"", bytes(30), build.pack_blank(8)))
    return bytes(packed), starts


def assert_walked_alike(
    parts: dict[int, bytes], is_damaged: dict[int, bool], framing: Framing
) -> None:
    """Compare a walk over ranges side by side with one over each of them, by where they begin."""
    buf = np.frombuffer(b"".join(parts.values()) + bytes(64), np.uint8).copy()
    lengths = np.array([len(part) for part in parts.values()])
    ends = np.cumsum(lengths)
    bases = np.array([*parts]) - (ends - lengths)
    walks = walk_each(buf, ends - lengths, ends, ends, bases, framing)
    first = 0
    for number, (base, part) in enumerate(parts.items()):
        plain = walk_plainly(np.frombuffer(part, np.uint8), 0, len(part), base, framing)
        rows = slice(first, first + int(walks.counts[number]))
        first = rows.stop
        if walks.is_valid[number]:
            start = int(ends[number] - lengths[number])
            assert (walks.starts[rows] - start).tolist() == plain.starts.tolist()
            assert walks.sizes[rows].tolist() == plain.sizes().tolist()
            assert plain.kind in (StopKind.END, StopKind.BLANK)
            assert plain.position <= len(part)
        else:
            assert is_damaged[base]
