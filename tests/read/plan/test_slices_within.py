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

BEHIND_LOG = (1 << 40, 200, 0)  # physical offset, size and tags code


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param({}, id="valid"),
        pytest.param({1: (0, 0, 0), 50: (0, 0, 0), 90: (0, 0, 0)}, id="empty"),
        pytest.param({-1: BEHIND_LOG}, id="last behind the log"),
        pytest.param({-20: BEHIND_LOG, 3: BEHIND_LOG}, id="behind the log"),
    ],
)
@pytest.mark.parametrize("seed", tiers.seeds(8))
def test_a_short_range_gives_what_a_long_one_would(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    damage: dict[int, tuple[int, int, int]],
) -> None:
    rng = random.Random(seed)
    store = build.Store(segment_bytes=8192)
    for _ in range(600):
        store.append(build.Record("T", rng.randrange(3)))
    for row, unit in damage.items():
        store.queues["T", 0][row] = unit
    with open_parts(store.write(tmp_path / "s")) as parts:
        log_end = parts.log.max_offset
        for queue_id in range(3):
            queue = parts.queues.open("T", queue_id)
            start, end = parts.store_queues.range("T", queue_id)
            ranges = [sorted(rng.choices(range(start, end + 1), k=2)) for _ in range(20)]
            for bounds in [*ranges, (start, end), (end - 1, end)]:
                piece = QueueSlice("T", queue_id, *bounds)
                cuts = sorted(rng.choices(range(store.end + 100), k=6))
                spans = [Span(*cuts[row : row + 2]) for row in (0, 2, 4)]
                with monkeypatch.context() as patch:
                    patch.setattr(queue_ranges, "_valid_within", lambda *_: None)
                    expected = slices_within(queue, piece, spans, log_end)
                found = slices_within(queue, piece, spans, log_end)
                assert _offsets(found) == _offsets(expected)
                if not damage or queue_id:
                    offsets = range(piece.start, piece.end)
                    inside = [any(s <= queue.unit(o)[0] < e for s, e in spans) for o in offsets]
                    assert _offsets(found) == [o for o, i in zip(offsets, inside, strict=True) if i]


def _offsets(parts: list[QueueSlice]) -> list[int]:
    return [offset for part in parts for offset in range(part.start, part.end)]
