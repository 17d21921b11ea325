"""Counts the messages of light message queues (LMQ) by the queues that the records of the log name.

With combineCQUseRocksdbForLmq the broker keeps plain queues in files, and light queues in a RocksDB
database in a folder of its own, so the log alone tells which light queues there are.

Source: CombineConsumeQueueStore.java.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from rmqstore.format.columns.decode import topics
from rmqstore.format.columns.dispatch_requests import have_units
from rmqstore.format.columns.lmq import lmq_heads
from rmqstore.storage.log.commitlog import CommitLog
from rmqstore.storage.log.walks import walk_forward

_MAX_NAMES = 5


def count_light_messages(log: CommitLog, end: int, batch_topics: Collection[str]) -> Counter[str]:
    """Return the number of messages in each light queue that records before ``end`` name.

    Reads the whole log.
    """
    counts: Counter[str] = Counter()
    for start, stop, segment in log.stretches(log.min_offset, end):
        if segment is None:
            continue
        for window in walk_forward(log, segment, start, stop):
            for _, heads, whole in window.heads():
                delivered = heads.take(whole & have_units(heads.column("sys_flag")))
                light = lmq_heads(window.data, delivered, batch_topics)
                if len(light):
                    counts.update(topics(window.data, light).to_pylist())
    return counts


def describe_light_queues(counts: Counter[str], names: Collection[str]) -> str:
    """Describe light queues in words: how many messages they have, and the first few names."""
    total = sum(counts[name] for name in names)
    listed = sorted(names)[:_MAX_NAMES]
    others = f" and {len(names) - len(listed)} others" if len(names) > len(listed) else ""
    return f"{total} messages of light message queues {', '.join(listed)}{others}"
