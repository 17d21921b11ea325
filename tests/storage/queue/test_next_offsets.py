"""Which queue offsets rows took."""

from __future__ import annotations

import numpy as np
import pytest

from rmqstore.errors import IllegalMessageError
from rmqstore.format.columns.encode import TopicColumn
from rmqstore.spans import QueueSlice
from rmqstore.storage.queue.next_offsets import NextOffsets

IN_STORE = {("A", 0): 100, ("B", 1): 5}
TOPICS = TopicColumn(["B", "A", "New"], np.array([0, 1, 1, 2], np.int32))
QUEUE_IDS = np.array([1, 0, 0, 3], np.int32)


def test_offsets_that_rows_took_are_known_by_queue() -> None:
    offsets = NextOffsets(lambda topic, queue_id: IN_STORE.get((topic, queue_id)))
    assert offsets.taken() == []
    assert offsets.assign(TOPICS, QUEUE_IDS).tolist() == [5, 100, 101, 0]
    offsets.assign(TopicColumn(["A"], np.zeros(2, np.int32)), np.array([0, 7], np.int32))
    taken = [("A", 0, 100, 103), ("A", 7, 0, 1), ("B", 1, 5, 6), ("New", 3, 0, 1)]
    assert offsets.taken() == [QueueSlice(*one) for one in taken]


def test_offsets_that_rows_bring_begin_a_new_queue_where_they_begin() -> None:
    offsets = NextOffsets(lambda topic, queue_id: IN_STORE.get((topic, queue_id)))
    queued = np.ones(4, np.bool_)

    def claim(*brought: int) -> None:
        with offsets.undone_on_error():
            offsets.claim(TOPICS, QUEUE_IDS, np.array(brought), queued)

    with pytest.raises(IllegalMessageError):
        claim(5, 100, 102, 900)
    assert offsets.taken() == []
    claim(5, 100, 101, 700)
    claim(6, 102, 103, 701)
    assert offsets.taken() == [
        QueueSlice("A", 0, 100, 104), QueueSlice("B", 1, 5, 7), QueueSlice("New", 3, 700, 702),
    ]  # fmt: skip
