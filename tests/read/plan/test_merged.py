"""Parts that are read together in the order of the log give the same rows where they are split."""

from __future__ import annotations

from typing import Any

import pytest

import rmqstore
from goldens import Golden
from rmqstore.read.parts import Merged
from rmqstore.read.plan import plan
from rmqstore.read.request import parse_request
from rmqstore.read.split import Limits


@pytest.mark.parametrize(
    ("name", "by_key"),
    [("crash", {"msg_key": "order-25"}), ("basic", {"where": "keys = 'order-7'"})],
    ids=["look-up", "condition"],
)
def test_a_merged_part_can_be_split(
    golden_store: Golden, name: str, by_key: dict[str, Any]
) -> None:
    request = parse_request({"columns": "commitLogOffset", **by_key})
    with rmqstore.open(golden_store(name)) as store:
        (merged,) = plan(store.parts, request, Limits(600))
        assert isinstance(merged, Merged)
        cuts = merged.split(Limits(600))
        whole, *parts = [
            [row for batch in part.read(store.parts, request) for row in batch[0].to_pylist()]
            for part in (merged, *cuts)
        ]
    assert len(parts) > len(merged.parts)
    assert [*whole] == sorted(row for rows in parts for row in rows)
    assert whole
