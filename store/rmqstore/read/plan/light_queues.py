"""Light message queues (LMQ) that lie in RocksDB alone, counted by what records of the log say.

Source: CombineConsumeQueueStore.java: with combineCQUseRocksdbForLmq, and in a RocksDB database of its own folder, the
broker keeps plain queues in files and light ones in RocksDB.
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
    """Return how many messages each light queue has that records before ``end`` name; reads all of the log."""
    found: Counter[str] = Counter()
    for start, stop, segment in log.stretches(log.min_offset, end):
        if segment is None:
            continue
        for window in walk_forward(log, segment, start, stop):
            for _, heads, whole in window.heads():
                named = lmq_heads(window.data, heads.take(whole & have_units(heads.column("sys_flag"))))
                if len(named):
                    found.update(topics(window.data, named).to_pylist())
    return found


def told(counts: Counter[str], names: Collection[str]) -> str:
    """Return how many messages some light queues have, in words that name a few of them."""
    some = sorted(names)[:_MAX_NAMES]
    others = f" and {len(names) - len(some)} others" if len(names) > len(some) else ""
    return f"{sum(counts[name] for name in names)} messages of light message queues {', '.join(some)}{others}"
