"""The core alone: a store as Arrow batches, without Spark and without a broker.

Usage: python examples/02_without_spark.py STORE TOPIC
"""

from __future__ import annotations

import sys

import pyarrow as pa

import rmqstore


def main(path: str, topic: str) -> None:
    with rmqstore.open(path) as store:
        for queue in store.queues(topic):
            offsets = f"{queue.min_offset} to {queue.max_offset}"
            print(f"{queue.topic}-{queue.queue_id}: {offsets}, {queue.n_bytes:,} bytes")

        # A scan reads only when something asks for its rows, and again each time. pandas, Polars
        # and DuckDB take it as it is.
        scan = store.scan(subscribe=topic, columns="queueId,queueOffset,tags,commitLogOffset")
        print(scan.count(), "messages, the first:", scan.head(1).to_pylist())
        table: pa.Table = scan.to_arrow()
        print(table.group_by("tags").aggregate([("queueOffset", "count")]).to_pylist())

        # One message, by its physical offset or by its offset message id.
        message = store.get(table["commitLogOffset"][0].as_py())
        print(message.offsetMsgId, message.keys, message.body[:40])
        assert store.get(message.offsetMsgId) == message

        # The first message at or after a time.
        offset = store.offset_at(topic, message.queueId, message.storeTimestamp)
        print("offset at", message.storeTimestamp, "is", offset)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
