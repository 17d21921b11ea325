"""Finds damage of queues and of an index in RocksDB, and names what else a broker keeps there.

No check compares the index and what else there is with the log. What a broker does with a damaged
index was tried with RocketMQ 5.5.1: it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

from rmqstore.errors import (
    CorruptDatabaseError,
    Finding,
    UnreadableFileError,
    UnsupportedFeatureError,
)
from rmqstore.format.topics import ROCKSDB_HALF_TOPIC, TIMER_TOPIC
from rmqstore.read.store_parts import StoreParts
from rmqstore.storage.files.paths import has_database, segment_files
from rmqstore.storage.index_search import INDEX_FAMILY, may_have_index_table
from rmqstore.storage.rocksdb import can_read_rocksdb, open_rocksdb

logger = logging.getLogger(__name__)


def database_findings(parts: StoreParts) -> Iterator[Finding]:
    """Yield the damage of queues, and of the database with the index.

    A warning says what else a store has in a database, or had in it by its other files.
    """
    damage = parts.ends.rocksdb_damage
    if damage is not None:
        yield Finding("queue", damage.path, f"queues cannot be read: {damage.reason}", "database")
    paths = parts.paths
    found = []
    if can_read_rocksdb() and has_database(paths.storage, paths.rocksdb_store):
        try:
            with suppress(UnreadableFileError, UnsupportedFeatureError):  # it is not looked at
                database = open_rocksdb(paths.rocksdb_store, paths.storage)
                database.require_items(INDEX_FAMILY, b"", b"\xff" * 8)
        except CorruptDatabaseError as err:
            text = f"{err.reason}; a broker starts, and finds fewer messages by key"
            yield Finding("index", err.path, text, "check")
    if may_have_index_table(paths):
        found.append("index")
    topics = parts.store_queues.topics()
    progress = parts.config.timer_progress()
    # A broker with timers in files notes how far the timer log is on the disk.
    has_log = progress.log_flushed > 0 or segment_files(paths.storage, paths.timer_log)
    if TIMER_TOPIC in topics and progress.read_time > 0 and not has_log:
        found.append("timed messages")
    if ROCKSDB_HALF_TOPIC in topics:
        found.append("transactions")
    if found:
        logger.warning("%s: not looked at: %s in RocksDB", paths.root, ", ".join(found))
