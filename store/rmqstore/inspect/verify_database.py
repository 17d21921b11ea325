"""Finds damage of queues in RocksDB, and names what else a broker keeps there.

No check compares the latter with the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from rmqstore.errors import Finding
from rmqstore.format.topics import ROCKSDB_HALF_TOPIC, TIMER_TOPIC
from rmqstore.read.store_parts import StoreParts
from rmqstore.storage.files.paths import segment_files
from rmqstore.storage.index_search import may_have_index_table

logger = logging.getLogger(__name__)


def database_findings(parts: StoreParts) -> Iterator[Finding]:
    """Yield the damage of queues in RocksDB.

    A warning says what else a store has in a database, or had in it by its other files.
    """
    damage = parts.ends.rocksdb_damage
    if damage is not None:
        yield Finding("queue", damage.path, f"queues cannot be read: {damage.reason}", "database")
    paths = parts.paths
    found = []
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
