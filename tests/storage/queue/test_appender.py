"""Units that are appended to the files of a queue, in the order of the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rmqstore.format.layout import QUEUE_UNIT
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.queue.appender import QueueAppender
from rmqstore.storage.queue.consumequeue import ConsumeQueue


def append(appender: QueueAppender, queue_offsets: list[int], physical_offset: int) -> None:
    """Append a unit for each queue offset, of records of 100 bytes from an offset of the log on."""
    units = np.zeros(len(queue_offsets), QUEUE_UNIT)
    units["physical_offset"] = physical_offset + 100 * np.arange(len(queue_offsets))
    units["size"] = 100
    appender.append(np.array(queue_offsets, np.int64), units)


@pytest.mark.parametrize("before", [[0, 1, 2], [0, 1, 2, 3, 4]])
def test_units_stand_at_their_queue_offsets_also_after_a_gap(
    tmp_path: Path, before: list[int]
) -> None:
    disk = Disk()
    appender = QueueAppender(disk, tmp_path / "0", 400, start=0, end=0, records_end=0, is_new=True)
    append(appender, before, 0)
    append(appender, [5, 6, 7, 8], 1000)
    append(appender, [9, 10], 1400)
    appender.finish()
    disk.close()
    assert appender.end == 11
    assert len(appender.misplaced) == (len(before) < 5)
    units = ConsumeQueue(tmp_path / "0").units(0, 11)
    gap = [1000] * (5 - len(before))  # the next record's unit fills it
    expected = [100 * at for at in before] + gap + [1000, 1100, 1200, 1300, 1400, 1500]
    assert units.physical_offsets.tolist() == expected
