"""A stream's progress as a broker keeps that of a consumer group: for tools that read ``consumerOffset.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def write_consumer_offsets(file: Path, group: str, queues: Mapping[tuple[str, int], int]) -> None:
    """Write the next queue offset of each queue as the offsets of a group, all of them or none.

    Args:
        file: replaced; its folder is made if there is none.
        group: name of the consumer group.
        queues: by topic and queue id.

    Source: ConsumerOffsetManager.java#encode.
    """
    table: dict[str, dict[str, int]] = {}
    for (topic, queue_id), at in sorted(queues.items()):
        table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = at
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f"{file.name}.tmp")
    made.write_text(json.dumps({"offsetTable": table}, indent=1), encoding="utf-8")
    made.replace(file)
