"""Names what a broker keeps in its RocksDB database, which no check compares with the log."""

from __future__ import annotations

import logging

from rmqstore.format.topics import ROCKSDB_HALF_TOPIC, TIMER_TOPIC
from rmqstore.read.store_parts import StoreParts
from rmqstore.storage.files.paths import segment_files
from rmqstore.storage.index_search import may_have_index_table

logger = logging.getLogger(__name__)


def warn_of_database(parts: StoreParts) -> None:
    """Log a warning of what a store has in the database, or had in it by its other files."""
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
