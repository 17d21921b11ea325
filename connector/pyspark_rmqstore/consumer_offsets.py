"""The progress of a stream as that of a consumer group, in the form of ``consumerOffset.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def write_consumer_offsets(file: Path, group: str, queues: Mapping[tuple[str, int], int]) -> None:
    """Write the next queue offset of each queue as the offsets of a consumer group, atomically.

    Args:
        file: the file to replace; its folder is made if it does not exist.
        group: name of the consumer group.
        queues: queue offsets by topic and queue id.

    Source: ConsumerOffsetManager.java#encode.
    """
    table: dict[str, dict[str, int]] = {}
    for (topic, queue_id), offset in sorted(queues.items()):
        table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    file.parent.mkdir(parents=True, exist_ok=True)
    new_file = file.with_name(f"{file.name}.tmp")
    new_file.write_text(json.dumps({"offsetTable": table}, indent=1), encoding="utf-8")
    new_file.replace(file)
