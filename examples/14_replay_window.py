"""Put the messages of a time window into a new store, for a test broker to serve.

Usage: python examples/14_replay_window.py STORE TARGET TOPIC BEGIN END

BEGIN and END are store times, such as 2026-11-21T02:00:00, 1700000000000 or -1h; END is excluded.
Bodies, tags, keys, properties, born times and queues are as they were; offsets and store times are
new. Each run needs a new TARGET, so that a window is never in it twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import rmqstore

COLUMNS = "topic,queueId,body,tags,keys,msgId,properties,flag,bornTimestamp,bornHost,storeTimestamp"


def main(path: str, target: str, topic: str, begin: str, end: str) -> None:
    if Path(target).exists():
        raise SystemExit(f"{target} exists already: a window is replayed into a new store")
    with rmqstore.open(path) as store:
        queue_nums = len(store.queue_ids(topic))
        window = store.scan(
            subscribe=topic, starting_timestamp=begin, ending_timestamp=end, columns=COLUMNS
        )
        spec = rmqstore.WriteSpec(default_queue_nums=max(queue_nums, 1))
        with rmqstore.create(target, spec=spec) as writer:
            for batch in in_order(window):
                writer.append(batch)
    with rmqstore.open(target) as store:
        for queue in store.queues(topic):
            print(f"{topic}-{queue.queue_id}: {queue.max_offset} messages")


def in_order(window: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the messages without their store time; say at the end which times they had."""
    times = []
    for batch in window:
        times.append(pc.min_max(batch["storeTimestamp"]))
        yield batch.drop_columns(["storeTimestamp"])
    found = [(span["min"].as_py(), span["max"].as_py()) for span in times]
    if found:
        print(f"stored from {min(low for low, _ in found)} to {max(high for _, high in found)}")


if __name__ == "__main__":
    if len(sys.argv) != 6:
        raise SystemExit(__doc__)
    try:
        main(*sys.argv[1:])
    except (rmqstore.RmqStoreError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        raise SystemExit(2) from err
