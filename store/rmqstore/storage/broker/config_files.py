"""The broker's tables under ``config/``, such as topics, and the broker's name, read-only."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from rmqstore.errors import (
    NOT_PERMITTED,
    CorruptConfigError,
    CorruptDatabaseError,
    NotPermittedError,
    UnreadableFileError,
    UnsupportedFeatureError,
)
from rmqstore.format.layout import TIMER_CHECK
from rmqstore.storage.broker.identity import BrokerIdentity, broker_name, read_identity
from rmqstore.storage.broker.rocksdb_tables import database_folders, stored_tables
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import Storage, read_small, read_start
from rmqstore.storage.rocksdb import can_read_rocksdb

logger = logging.getLogger(__name__)

# fastjson writes integer keys without quotes: {0:12,1:7}. Text inside of strings is skipped.
_UNQUOTED_KEY = re.compile(r'("(?:[^"\\]++|\\.)*+")|([{,]\s*+)(-?\d++)(\s*+:)')
_INTEGER = re.compile(r"-?\d{1,40}", re.ASCII)
# behind a table, such as zeros that a loss of power leaves
_PASSED_OVER = "".join(map(chr, range(0x21)))
TOPICS = "topics.json"
OFFSETS, _LMQ_OFFSETS = "consumerOffset.json", "lmqConsumerOffset.json"
_UNKNOWN = {
    TOPICS: "which topics the broker registers is not known",
    OFFSETS: "what consumer groups have committed is not known",
}
MAX_TABLE_BYTES = 16 << 20  # a parsed table may take forty times as much memory
# Source: TopicAttributes.java, CQType.java.
QUEUE_TYPE, BATCH_QUEUES = "queue.type", "BatchCQ"


def load_table(storage: Storage, path: Path) -> dict[str, Any]:
    """Load a broker's JSON file, or its ``.bak`` as a broker does; {} if there is neither.

    A broker takes the ``.bak`` where the file is missing, empty or damaged, as after a power cut.
    Damage is reported by a warning, once for each file.

    Raises:
        CorruptConfigError: the file is not a JSON object with the tables that it should have,
            unquoted integer keys aside, and there is no ``.bak`` that is one.

    Source: ConfigManager.java#load.
    """
    damage: CorruptConfigError | None = None
    for file in (path, path.with_name(path.name + ".bak")):
        try:
            table = _load(storage, file)
        except CorruptConfigError as err:
            damage = damage or err
            continue
        if table is None:
            continue
        if damage is not None:
            status = storage.status(path)
            warning = f"{damage}; {file.name} is read instead, as a broker does"
            _warn_once(warning, 0 if status is None else status.modified_ns)
        return table
    if damage is not None:
        raise damage
    return {}


@lru_cache(256)
def _warn_once(warning: str, _modified_ns: int = 0) -> None:
    """Log a warning, once for each state of a file."""
    logger.warning("%s", warning)


def _load(storage: Storage, file: Path) -> dict[str, Any] | None:
    """Return the table in a file, None if the file is missing or empty."""
    try:
        text = read_small(storage, file, MAX_TABLE_BYTES).decode("utf-8-sig", errors="replace")
    except FileNotFoundError:
        return None
    except NotPermittedError as err:
        raise CorruptConfigError(err.path, 0, f"{NOT_PERMITTED} ({err.found})") from err
    except UnreadableFileError as err:
        reason = f"this is {err.found}; {err.expected} is expected"
        raise CorruptConfigError(err.path, 0, reason) from err
    if not text.strip():
        return None
    if text.strip() in ("null", "[]"):  # a broker takes either for a table without entries
        return {}
    table = _parse(file, text)
    for name, check_entry in _TABLES.get(file.name.removesuffix(".bak"), {}).items():
        for key, value in part_of(file, table, name).items():
            check_entry(file, key, value)
    return table


def _parse(file: Path, text: str) -> dict[str, Any]:
    text = text.rstrip(_PASSED_OVER)
    try:
        try:
            table = json.loads(text)
        except ValueError:
            # Most files have no integer key without quotes, and to look for them takes longer than
            # to parse the text.
            table = json.loads(
                _UNQUOTED_KEY.sub(
                    lambda match: match[1] or f'{match[2]}"{match[3]}"{match[4]}', text
                )
            )
        # An escape may stand for half a character, which no other file can hold.
        if "\\u" in text:
            json.dumps(table, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as err:
        reason = f"not JSON that a broker writes: {err}"
        raise CorruptConfigError(str(file), getattr(err, "pos", 0), reason) from err
    if not isinstance(table, dict):
        reason = f"a {type(table).__name__} where a table is expected"
        raise CorruptConfigError(str(file), 0, reason)
    return table


def holds_table(storage: Storage, path: Path) -> bool:
    """Return whether a broker's JSON file is there and neither empty nor damaged."""
    try:
        return _load(storage, path) is not None
    except CorruptConfigError:
        return False


def is_table(content: bytes) -> bool:
    """Return whether bytes are the whole content of a broker's JSON file, which may be empty."""
    try:
        table_of(content)
    except CorruptConfigError:
        return False
    return True


def table_of(content: bytes) -> dict[str, Any]:
    """Return the table in the content of a broker's JSON file, {} if it is empty.

    Raises:
        CorruptConfigError: it is not a JSON object, unquoted integer keys aside.
    """
    text = content.decode(errors="replace")
    return _parse(Path(), text) if text.strip() else {}


def part_of(path: Path, table: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table inside a table, {} if there is none.

    Args:
        path: the file that the table was loaded from.
        table: the outer table, as :func:`load_table` returns it.
        name: key of the inner table.

    Raises:
        CorruptConfigError: the value is not a table.
    """
    inner = table.get(name, {})
    if not isinstance(inner, dict):
        raise CorruptConfigError(str(path), 0, f"{name} is a {type(inner).__name__}, not a table")
    return inner


LAST_OFFSET: Final = (1 << 63) - 1  # of Java's long


def integer(value: Any, bits: int | None = 64) -> int:  # noqa: ANN401 - any JSON
    """Return an integer of a table, or one that a key spells.

    Args:
        value: any JSON value.
        bits: width of the Java type; None for an integer of any size.

    Raises:
        ValueError: the value is not an integer of that width.
    """
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or (bits is not None and not -(1 << (bits - 1)) <= value < 1 << (bits - 1)):
        size = "" if bits is None else f" of {bits} bits"
        raise ValueError(f"{str(value)[:50]!r} is not an integer{size}")
    return int(value)


def _has_table(storage: Storage, path: Path) -> bool:
    """Return whether a broker's JSON file has content, or its ``.bak``."""
    statuses = (storage.status(path), storage.status(path.with_name(path.name + ".bak")))
    return any(status is not None and (status.size or not status.is_file) for status in statuses)


def _offsets_by_queue(path: Path, key: str, offsets: Any) -> dict[tuple[str, int], int]:  # noqa: ANN401 - any JSON
    """Return offsets by topic and queue id.

    One that Java's long cannot hold is the nearest that it can.

    Args:
        path: the file that they were loaded from.
        key: ``topic@group``.
        offsets: a table of offsets by queue id.

    Raises:
        CorruptConfigError: it is not a table of integers.
    """
    topic = key.partition("@")[0]
    by_queue: dict[tuple[str, int], int] = {}
    try:
        for queue_id, offset in offsets.items():
            number = max(min(integer(offset, None), LAST_OFFSET), -LAST_OFFSET - 1)
            by_queue[topic, integer(queue_id, None)] = number
    except (AttributeError, ValueError) as err:
        reason = f"offsets of {key!r} are not a table of integers: {err}"
        raise CorruptConfigError(str(path), 0, reason) from err
    return by_queue


def _require_table(path: Path, key: str, value: Any) -> None:  # noqa: ANN401 - any JSON
    part_of(path, {key: value}, key)


def _require_numbers(path: Path, key: str, value: Any) -> None:  # noqa: ANN401 - any JSON
    _offsets_by_queue(path, key, {key: value})


# The files of tables, the tables in them, and what their entries must be: a broker that meets
# another one takes the backup.
_VERSION: Final = {"dataVersion": lambda *_: None}
_TABLES: Final[dict[str, dict[str, Callable[[Path, str, Any], object]]]] = {
    "topics.json": {"topicConfigTable": _require_table, **_VERSION},
    "subscriptionGroup.json": {"subscriptionGroupTable": _require_table, **_VERSION},
    "consumerOffset.json": {"offsetTable": _offsets_by_queue},
    "lmqConsumerOffset.json": {"lmqOffsetTable": lambda *_: None, "offsetTable": _offsets_by_queue},
    "delayOffset.json": {"offsetTable": _require_numbers},
    "consumerFilter.json": {"filterDataByTopic": _require_table},
    "topicQueueMapping.json": {"topicQueueMappingInfoMap": _require_table, **_VERSION},
    "consumerOrderInfo.json": {"table": _require_table},
    "timermetrics": {"timingCount": _require_table, **_VERSION},
}


def _offsets_by_group(path: Path, table: dict[str, Any]) -> dict[str, dict[tuple[str, int], int]]:
    by_group: dict[str, dict[tuple[str, int], int]] = {}
    for key, offsets in table.items():
        group = key.partition("@")[2]
        by_group.setdefault(group, {}).update(_offsets_by_queue(path, key, offsets))
    return by_group


def why_unknown(paths: StorePaths, file: str) -> str | None:
    """Return why a table is not known, None if it is known.

    A broker writes a table without entries as JSON as well, so an empty file says nothing.

    Args:
        paths: the store.
        file: :data:`TOPICS` or :data:`OFFSETS`.
    """
    path, storage = paths.config / file, paths.storage
    files = [path, paths.config / _LMQ_OFFSETS] if file == OFFSETS else [path]
    if any(_has_table(storage, name) for name in files):
        return None
    if database_folders(paths.config, storage, file):
        return None
    empty = [name for name in files if storage.exists(name)]
    state = "empty" if empty else "missing"
    return f"{(*empty, path)[0]} is {state}: {_UNKNOWN[file]}"


def warn_if_unknown(paths: StorePaths, file: str) -> str | None:
    """Log why a table is not known, and return it as :func:`why_unknown` does."""
    reason = why_unknown(paths, file)
    if reason is not None:
        logger.warning("%s", reason)
    return reason


class TableDamage(NamedTuple):
    """The damage of a table, and why a broker that loads it does not start; "" if it does."""

    error: CorruptConfigError
    stops_broker: str = ""


class TimerProgress(NamedTuple):
    """How far a broker has come with timed messages; 0 if unknown."""

    read_time: int  # ms, a whole second: the next one to be delivered
    log_flushed: int  # position in the timer log up to which it is on the disk
    queue_offset: int  # the next message of the timer topic to enter into the wheel
    master_queue_offset: int  # the same of the master, after which none was entered


def batch_topics_of(entries: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the topics whose configuration says that their queues are BatchConsumeQueues.

    Source: QueueTypeUtils.java#isBatchCq.
    """
    topics = set()
    for topic, entry in entries.items():
        attributes = entry.get("attributes")
        if isinstance(attributes, dict) and attributes.get(QUEUE_TYPE) == BATCH_QUEUES:
            topics.add(topic)
    return topics


class BrokerConfig:
    """The tables under ``config/``; each is read whenever it is needed."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths

    def _table(self, file: str, name: str) -> dict[str, Any]:
        path, storage = self._paths.config / file, self._paths.storage
        table = load_table(storage, path)
        in_file = part_of(path, table, name)
        if not database_folders(self._paths.config, storage, file):
            return in_file
        stored = stored_tables(self._paths.config, storage, file)
        entries: dict[str, Any] = {}
        counter = -1
        for stored_table in stored:
            if stored_table.counter <= counter:
                continue
            counter = stored_table.counter
            for key, value in stored_table.entries.items():
                try:
                    entries[key] = table_of(value)
                except CorruptConfigError as err:
                    reason = f"{key!r}: {err.reason}"
                    raise CorruptConfigError(str(stored_table.path), 0, reason) from err
        if file == OFFSETS:
            entries = {key: part_of(stored[0].path, entry, name) for key, entry in entries.items()}
        version = table.get("dataVersion")
        in_file_counter = version.get("counter") if isinstance(version, dict) else None
        if not isinstance(in_file_counter, int) or stored[0].is_alone:
            return entries
        return entries | in_file if in_file_counter > counter else entries

    def databases(self) -> list[Path]:
        """Return the folders of the RocksDB databases that hold tables of the broker."""
        return database_folders(self._paths.config, self._paths.storage)

    def damage(self) -> list[TableDamage]:
        """Return the damage of each table, whether or not it has a backup."""
        found = []
        has_databases = bool(self.databases()) and can_read_rocksdb()
        for read in (self.topic_entries, self.subscribed_groups, self.committed_offsets):
            try:
                if has_databases:
                    read()
            except CorruptDatabaseError as err:
                damage = CorruptConfigError(err.path, 0, err.reason)
                text = "a broker does not start, or starts without a part of the table"
                found.append(TableDamage(damage, text))
            except CorruptConfigError as err:
                if not err.path.endswith(".json"):  # of a file it is found below
                    found.append(TableDamage(err))
        for name in _TABLES:
            found += self._damage_of(self._paths.config / name)
        return found

    def _damage_of(self, path: Path) -> Iterator[TableDamage]:
        """Yield the damage of the file of a table, or of its backup if a broker reads that.

        Source: ConfigManager.java#loadBak.
        """
        storage = self._paths.storage
        damage: CorruptConfigError | None = None
        try:
            if _load(storage, path) is not None:
                return
        except CorruptConfigError as err:
            damage = err
        try:
            backup = _load(storage, path.with_name(path.name + ".bak"))
        except CorruptConfigError as err:
            text = "the table has no valid file: a broker that loads it does not start"
            yield TableDamage(err if damage is None else damage, text)
            return
        is_alone = backup is None and not database_folders(self._paths.config, storage, path.name)
        if damage is None and is_alone and storage.exists(path):
            reason = "the file is empty, as after a power cut, and it has no backup with content"
            damage = CorruptConfigError(str(path), 0, reason)
        if damage is not None:
            yield TableDamage(damage)

    def topics(self) -> list[str]:
        """Return all topics that the broker knows, sorted, including those without messages.

        [] if the table cannot be read, as for :meth:`known_topic_entries`.
        """
        return sorted(self.known_topic_entries())

    def topic_entries(self) -> dict[str, dict[str, Any]]:
        """Return the configuration of each topic: ``perm``, ``readQueueNums`` and so on."""
        return self._table("topics.json", "topicConfigTable")

    def known_topic_entries(self) -> dict[str, dict[str, Any]]:
        """Return :meth:`topic_entries`, {} if the table cannot be read.

        Messages can be read without it, so a warning says why.
        """
        try:
            return self.topic_entries()
        except (CorruptConfigError, CorruptDatabaseError, UnsupportedFeatureError) as err:
            _warn_once(f"{err}; the only topics known are those that have queues")
            return {}

    def committed_offsets(self) -> dict[str, dict[tuple[str, int], int]]:
        """Return the committed offsets of every group, as :meth:`consumer_offsets` does for one."""
        return _offsets_by_group(*self._offset_table())

    def earlier_offsets(self) -> dict[str, dict[tuple[str, int], int]]:
        """Return the offsets that were committed when the broker wrote its file the last time.

        A broker writes the file every 5 seconds and keeps the one before as ``.bak``. {} if there
        is none.

        Source: ConfigManager.java#persist, MixAll.java#string2File.
        """
        path = self._paths.config / "consumerOffset.json.bak"
        table = load_table(self._paths.storage, path)
        return _offsets_by_group(path, part_of(path, table, "offsetTable"))

    def _offset_table(self) -> tuple[Path, dict[str, Any]]:
        """Return the file with the offsets of consumer groups, and its offsets by ``topic@group``.

        A broker with light message queues (``enableLmq``) keeps a file of its own instead. A group
        of such queues has one number there, which is of queue 0.

        Source: ConsumerOffsetManager.java, LmqConsumerOffsetManager.java.
        """
        path = self._paths.config / OFFSETS
        lmq_path = path.with_name(_LMQ_OFFSETS)
        in_rocksdb = database_folders(self._paths.config, self._paths.storage, path.name)
        if not in_rocksdb and not _has_table(self._paths.storage, path):
            table = load_table(self._paths.storage, lmq_path)
            if table:
                of_lmq_groups = part_of(lmq_path, table, "lmqOffsetTable")
                offsets = {key: {"0": offset} for key, offset in of_lmq_groups.items()}
                return lmq_path, offsets | part_of(lmq_path, table, "offsetTable")
        return (*in_rocksdb, path)[0], self._table(path.name, "offsetTable")

    def consumer_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return the group's committed offsets by (topic, queue id).

        They are the next queue offsets to consume.

        Source: ConsumerOffsetManager.java.
        """
        path, table = self._offset_table()
        of_group = {key: value for key, value in table.items() if key.partition("@")[2] == group}
        return _offsets_by_group(path, of_group).get(group, {})

    def delay_offsets(self) -> dict[int, int]:
        """Return the queue offset of the next message to deliver, by delay level.

        The messages are those of SCHEDULE_TOPIC_XXXX.

        Source: ScheduleMessageService.java#decode.
        """
        table = self._table("delayOffset.json", "offsetTable")
        offsets = _offsets_by_queue(self._paths.config / "delayOffset.json", "offsetTable", table)
        return {level: offset for (_, level), offset in offsets.items()}

    def timer_progress(self) -> TimerProgress:
        """Return how far timed messages were delivered; zeros if no timer ever ran.

        Source: TimerCheckpoint.java.
        """
        size = TIMER_CHECK.itemsize
        stored = read_start(self._paths.storage, self._paths.config / "timercheck", size)
        fields = np.frombuffer(stored.ljust(size, b"\0"), TIMER_CHECK)[0]
        return TimerProgress(*fields.tolist())

    def filter_groups(self, topic: str) -> dict[str, int]:
        """Return the consumer groups that filter a topic by SQL92, and since when, ms.

        Source: ConsumerFilterManager.java.
        """
        path = self._paths.config / "consumerFilter.json"
        try:
            by_topic = self._table("consumerFilter.json", "filterDataByTopic")
            filters = by_topic.get(topic, {}).get("groupFilterData", {})
            return {group: integer(entry["bornTime"]) for group, entry in sorted(filters.items())}
        except (AttributeError, KeyError, TypeError, ValueError) as err:
            raise CorruptConfigError(
                str(path), 0, f"filters of {topic!r} are not a table of groups"
            ) from err

    def groups(self) -> list[str]:
        """Return the consumer groups with a committed offset, sorted."""
        _, table = self._offset_table()
        return sorted({key.partition("@")[2] for key in table})

    def subscribed_groups(self) -> list[str]:
        """Return the consumer groups that the broker has a configuration of, sorted.

        Source: SubscriptionGroupManager.java.
        """
        return sorted(self._table("subscriptionGroup.json", "subscriptionGroupTable"))

    def broker_name(self) -> str:
        """Return the broker's name.

        It comes from ``brokerIdentity``, else from ``broker.conf`` if that lies in the store, else
        from its member topic, else from the root folder.

        Source: BrokerMetadata.java; BrokerController.java#syncBrokerMemberGroup.
        """
        return broker_name(self._paths, self.topics) or self._paths.name

    def identity(self) -> BrokerIdentity:
        """Return what the files of the store say about its broker; see :func:`read_identity`."""
        return read_identity(self._paths, self.topics)
