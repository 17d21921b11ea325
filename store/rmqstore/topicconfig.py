"""Entries of ``config/topics.json``, by which a broker knows the topics that it serves.

Source: TopicConfigManager.java, TopicConfig.java, ConfigManager.java#persist.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rmqstore.brokerconfig import load_table
from rmqstore.files.disk import Disk
from rmqstore.files.paths import StorePaths

_READ_AND_WRITE = 6  # Source: PermName.java


def queue_nums(paths: StorePaths) -> dict[str, int]:
    """Return how many queues may be written to, by topic.

    Raises:
        CorruptConfigError: the file cannot be parsed.
    """
    table = load_table(paths.topics_json).get("topicConfigTable", {})
    return {topic: int(entry.get("writeQueueNums", 0)) for topic, entry in table.items() if isinstance(entry, dict)}


def register_topics(disk: Disk, paths: StorePaths, least: Mapping[str, int], of_new: int) -> None:
    """Add topics that have no entry, and raise the number of queues where an entry has too few.

    Args:
        least: how many queues there must be at least, by topic.
        of_new: how many a topic without an entry gets at least.
    """
    content = load_table(paths.topics_json)
    table = content.setdefault("topicConfigTable", {})
    changed = False
    for topic, n_least in least.items():
        n_queues = n_least if topic in table else max(n_least, of_new)
        entry = table.setdefault(topic, _entry(topic, 0))
        for name in ("readQueueNums", "writeQueueNums"):
            if int(entry.get(name, 0)) < n_queues:
                entry[name], changed = n_queues, True
    if not changed:
        return
    version = content.setdefault("dataVersion", {"counter": 0, "stateVersion": 0, "timestamp": 0})
    version["counter"] = int(version.get("counter", 0)) + 1
    disk.make_folder(paths.config)
    if paths.topics_json.exists():
        backup = paths.topics_json.with_name(paths.topics_json.name + ".bak")
        disk.replace(backup, paths.topics_json.read_bytes())
    else:
        disk.write_new(paths.topics_json, b"")
    disk.replace(paths.topics_json, json.dumps(content, indent="\t", ensure_ascii=False).encode())


def _entry(topic: str, n_queues: int) -> dict[str, object]:
    return {
        "attributes": {},
        "order": False,
        "perm": _READ_AND_WRITE,
        "readQueueNums": n_queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": n_queues,
    }
