"""Random transactions with one changed byte: what was aborted never comes out as committed."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import kafka_logs as build
import kafkalog
import tiers
from kafka_logs import ABORT, COMMIT, marker
from kafka_reading import offsets_of, opened
from rmqstore.errors import RmqStoreError


class Log(NamedTuple):
    """Batches, and the offsets of committed records; consumers get them up to the stable offset."""

    batches: list[bytes]
    committed: set[int]
    stable_offset: int
    end_offset: int


def read(folder: Path, mode: kafkalog.Mode, *bounds: int) -> list[int]:
    return offsets_of(opened(folder), *bounds, isolation_level="read_committed", mode=mode)


def make(chooser: random.Random) -> Log:
    batches: list[bytes] = []
    decided: dict[int, bool] = {}
    undecided: defaultdict[int, list[int]] = defaultdict(list)
    offset, n_sent = 0, [0, 0, 0, 0]
    for _ in range(chooser.randint(5, 25)):
        choice, producer = chooser.random(), chooser.randint(1, 3)
        if choice < 0.2:
            batches.append(build.batch(offset, [b"plain"]))
            decided[offset] = True
            offset += 1
        elif choice < 0.7:
            count = chooser.randint(1, 3)
            values = [b"x"] * count
            batches.append(build.sent(offset, producer, *values, sequence=n_sent[producer]))
            n_sent[producer] += count
            undecided[producer] += range(offset, offset + count)
            offset += count
        else:
            kind = chooser.choice([ABORT, COMMIT])
            decided |= dict.fromkeys(undecided.pop(producer, []), kind == COMMIT)
            batches.append(marker(offset, producer, kind))
            offset += 1
    stable = min((min(offsets) for offsets in undecided.values()), default=offset)
    return Log(batches, {at for at, is_commit in decided.items() if is_commit}, stable, offset)


@pytest.mark.parametrize("seed", tiers.seeds(40))
def test_one_changed_byte(folder: Path, seed: int) -> None:
    chooser = random.Random(seed)
    log = make(chooser)
    path = build.write_segment(folder, 0, *log.batches)
    expected = sorted(at for at in log.committed if at < log.stable_offset)
    assert read(folder, "FAILFAST") == expected
    build.write_checkpoint(folder, "recovery-point-offset", log.end_offset)
    content = path.read_bytes()
    path.write_bytes(
        build.changed(content, chooser.randrange(len(content)), chooser.randint(1, 255))
    )
    given = read(folder, "DROPMALFORMED")
    assert given == sorted(set(given) & log.committed)
    end = kafkalog.open(folder.parent).partition("t", 0).end_offset
    middle = chooser.randint(0, end)
    first, second = (
        read(folder, "DROPMALFORMED", *bounds) for bounds in ((0, middle), (middle, end))
    )
    assert first + second == given
    with suppress(RmqStoreError):
        assert read(folder, "FAILFAST") == expected
