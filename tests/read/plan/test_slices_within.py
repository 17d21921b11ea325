"""Parts of a queue in parts of the log: short valid ranges take a short cut to the same result."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import store_builder as build
import tiers
from rmqstore.read import queue_ranges
from rmqstore.read.queue_ranges import slices_within
from rmqstore.read.store_parts import open_parts
from rmqstore.spans import QueueSlice, Span


@pytest.mark.parametrize("damaged", [0, 3])
@pytest.mark.parametrize("seed", tiers.seeds(8))
def test_a_short_range_gives_what_a_long_one_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, damaged: int
) -> None:
    rng = random.Random(seed)
    store = build.Store(segment_bytes=8192)
    for _ in range(600):
        store.append(build.Record("T", rng.randrange(3)))
    units = store.queues["T", 0]
    for row in rng.sample(range(len(units)), damaged):
        units[row] = (0, 0, 0)
    with open_parts(store.write(tmp_path / "s")) as parts:
        log_end = parts.log.max_offset
        for queue_id in range(3):
            queue = parts.queues.open("T", queue_id)
            start, end = parts.store_queues.range("T", queue_id)
            for _ in range(20):
                bounds = sorted(rng.choices(range(start, end + 1), k=2))
                piece = QueueSlice("T", queue_id, *bounds)
                cuts = sorted(rng.choices(range(store.end + 100), k=6))
                spans = [Span(*cuts[row : row + 2]) for row in (0, 2, 4)]
                with monkeypatch.context() as patch:
                    patch.setattr(queue_ranges, "_valid_within", lambda *_: None)
                    expected = slices_within(queue, piece, spans, log_end)
                found = slices_within(queue, piece, spans, log_end)
                assert _offsets(found) == _offsets(expected)
                if not damaged or queue_id:
                    offsets = range(piece.start, piece.end)
                    inside = [any(s <= queue.unit(o)[0] < e for s, e in spans) for o in offsets]
                    assert _offsets(found) == [o for o, i in zip(offsets, inside, strict=True) if i]


def _offsets(parts: list[QueueSlice]) -> list[int]:
    return [offset for part in parts for offset in range(part.start, part.end)]
