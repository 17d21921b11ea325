"""Counts the messages of light message queues (LMQ) that only RocksDB holds, by the queues that log records name.

Source: CombineConsumeQueueStore.java. With combineCQUseRocksdbForLmq the broker keeps plain queues
in files, and light
queues in a RocksDB database in a folder of its own.
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


def count_light_messages(log: CommitLog, end: int) -> Counter[str]:
    """Return the number of messages in each light queue that records before ``end`` name.

    Reads the whole log.
    """
    counts: Counter[str] = Counter()
    for start, stop, segment in log.stretches(log.min_offset, end):
        if segment is None:
            continue
        for window in walk_forward(log, segment, start, stop):
            for _, heads, whole in window.heads():
                named = lmq_heads(
                    window.data, heads.take(whole & have_units(heads.column("sys_flag")))
                )
                if len(named):
                    counts.update(topics(window.data, named).to_pylist())
    return counts


def describe_light_queues(counts: Counter[str], names: Collection[str]) -> str:
    """Describe light queues in words: the number of messages in all of them, and the names of the first few."""
    listed = sorted(names)[:_MAX_NAMES]
    others = f" and {len(names) - len(listed)} others" if len(names) > len(listed) else ""
    return f"{sum(counts[name] for name in names)} messages of light message queues {', '.join(listed)}{others}"
