"""Entries of ``config/topics.json``, the topics that a broker serves.

Source: TopicConfigManager.java, TopicConfig.java, ConfigManager.java#persist.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rmqstore.errors import CorruptConfigError
from rmqstore.storage.broker.config_files import (
    BATCH_QUEUES,
    MAX_TABLE_BYTES,
    QUEUE_TYPE,
    holds_table,
    integer,
    load_table,
    part_of,
)
from rmqstore.storage.broker.identity import READ_AND_WRITE
from rmqstore.storage.files.disk import Disk
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import read_small

_TABLE = "topicConfigTable"
_VERSION = "dataVersion"
_QUEUE_NUMS = ("readQueueNums", "writeQueueNums")
_DEFAULT_QUEUES = 16  # Source: TopicConfig.java


class TopicEntry(NamedTuple):
    """An entry of ``config/topics.json``; what it does not say has RocketMQ's defaults."""

    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int
    order: bool


def topic_entry(entry: Mapping[str, Any]) -> TopicEntry:
    """Return the fields of an entry that a route has.

    Raises:
        ValueError: a value is not an integer of 32 bits.
    """
    return TopicEntry(
        integer(entry.get("readQueueNums", _DEFAULT_QUEUES), 32),
        integer(entry.get("writeQueueNums", _DEFAULT_QUEUES), 32),
        integer(entry.get("perm", READ_AND_WRITE), 32),
        integer(entry.get("topicSysFlag", 0), 32),
        entry.get("order") is True,
    )


def queue_nums(paths: StorePaths) -> dict[str, int]:
    """Return the number of writable queues by topic; topics without any are left out.

    Raises:
        CorruptConfigError: the file cannot be parsed, or its entries have the wrong types.
    """
    table = part_of(paths.topics_json, _load(paths), _TABLE)
    numbers = {topic: integer(entry.get("writeQueueNums", 0), 32) for topic, entry in table.items()}
    return {topic: number for topic, number in numbers.items() if number}


def _load(paths: StorePaths) -> dict[str, Any]:
    """Return the content of the file after a check of all that a change relies on.

    Raises:
        CorruptConfigError: an entry is not a table, or a number of queues is not valid.
    """
    path = paths.topics_json
    content = load_table(paths.storage, path)
    table = part_of(path, content, _TABLE)
    try:
        integer(content.get(_VERSION, {}).get("counter", 0))
        for topic, entry in table.items():
            if any(integer(entry.get(name, 0), 32) < 0 for name in _QUEUE_NUMS):
                raise CorruptConfigError(
                    str(path), 0, f"topic {topic!r} has a negative number of queues"
                )
    except ValueError as err:
        raise CorruptConfigError(str(path), 0, f"a value is not a number: {err}") from err
    return content


def register_topics(
    disk: Disk,
    paths: StorePaths,
    least: Mapping[str, int],
    of_new: int,
    batch_topics: Collection[str] = (),
) -> None:
    """Add topics without an entry, and raise the number of queues of those with too few.

    Args:
        least: minimum number of queues by topic.
        of_new: minimum number of queues of a topic that has no entry yet.
        batch_topics: topics whose queues are BatchConsumeQueues, which a new entry says.
    """
    content = _load(paths)
    table = content.setdefault(_TABLE, {})
    changed = False
    for topic, n_least in least.items():
        n_queues = n_least if topic in table else max(n_least, of_new)
        is_batch = topic in batch_topics
        entry = table.setdefault(
            topic,
            {
                "attributes": {QUEUE_TYPE: BATCH_QUEUES} if is_batch else {},
                "order": False,
                "perm": READ_AND_WRITE,
                "readQueueNums": 0,
                "topicFilterType": "SINGLE_TAG",
                "topicName": topic,
                "topicSysFlag": 0,
                "writeQueueNums": 0,
            },
        )
        for name in _QUEUE_NUMS:
            if integer(entry.get(name, 0)) < n_queues:
                entry[name] = n_queues
                changed = True
    if changed:
        _write(disk, paths, content)


def keep_topics(disk: Disk, paths: StorePaths, is_kept: Callable[[str], bool]) -> None:
    """Remove the entries of topics that are not kept, from the file and from its backup."""
    content = _load(paths)
    kept = _kept(content, is_kept)
    if len(kept[_TABLE]) < len(content.get(_TABLE, {})):
        _write(disk, paths, kept)
        disk.delete(_backup(paths))


def content_of_kept(paths: StorePaths, is_kept: Callable[[str], bool]) -> bytes:
    """Return the file as it is without the entries of topics that are not kept."""
    return _encoded(_kept(_load(paths), is_kept))


def _kept(content: dict[str, Any], is_kept: Callable[[str], bool]) -> dict[str, Any]:
    table = content.get(_TABLE, {})
    return content | {_TABLE: {topic: entry for topic, entry in table.items() if is_kept(topic)}}


def _encoded(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent="\t", ensure_ascii=False).encode()


def _backup(paths: StorePaths) -> Path:
    return paths.topics_json.with_name(paths.topics_json.name + ".bak")


def _write(disk: Disk, paths: StorePaths, content: dict[str, Any]) -> None:
    """Replace the file by a newer version of it, and keep the old one unless it is damaged."""
    version = content.setdefault(_VERSION, {"counter": 0, "stateVersion": 0, "timestamp": 0})
    version["counter"] = integer(version.get("counter", 0)) + 1
    disk.make_folder(paths.config)
    if holds_table(paths.storage, paths.topics_json):
        old = read_small(paths.storage, paths.topics_json, MAX_TABLE_BYTES)
        disk.replace(_backup(paths), old)
    disk.replace(paths.topics_json, _encoded(content))
