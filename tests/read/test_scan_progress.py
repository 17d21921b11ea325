"""A scan tells how far it is: up to all of what it planned, never beyond."""

from __future__ import annotations

from typing import Any

import pytest

import goldens
import rmqstore
from goldens import Golden
from tiers import spread

SCANS: list[dict[str, Any]] = [
    {}, {"scan": "commitlog"}, {"tags": "TagA"}, {"where": "storeSize > 300"},
    {"where": "queueId = 1", "scan": "commitlog"}, {"last": 2}, {"last": 2, "scan": "commitlog"},
    {"msg_tags": "TagA"}, {"mode": "PERMISSIVE", "filter": "a > 5"},
]  # fmt: skip
STORES = [*goldens.EVERY, *goldens.OF_GROUPS]


@pytest.mark.parametrize(("name", "arguments"), spread(7, STORES, SCANS))
def test_a_scan_tells_how_far_it_is(
    golden_store: Golden, name: str, arguments: dict[str, Any]
) -> None:
    told: list[tuple[int, int]] = []
    with rmqstore.open(golden_store(name)) as store:
        scan = store.scan(**arguments, progress=lambda done, total: told.append((done, total)))
        n_rows = len(scan.read_all())
    assert all(0 <= done <= total for done, total in told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    if n_rows:
        done, total = told[-1]
        assert 0.95 * total <= done
        assert "scan" in arguments or "msg_tags" in arguments or done >= n_rows


def test_a_scan_by_queue_counts_messages_and_one_by_log_bytes(golden_store: Golden) -> None:
    told: list[tuple[int, int]] = []

    def report(done: int, total: int) -> None:
        told.append((done, total))

    with rmqstore.open(golden_store("default-sizes")) as store:
        n_rows = len(store.scan(tags="none of these", progress=report).read_all())
        assert (n_rows, told[-1]) == (0, (25, 25))
        store.scan(scan="commitlog", progress=report).read_all()
        done, total = told[-1]
        assert 0.95 * total < done <= total < 100_000  # of a file of a GiB
