"""Compares our append with putMessage of RocketMQ 5.3.3, for the same messages.

Both are timed until queues and index are built. RocketMQ's store runs in its own JVM. The loop over
messages runs there too, so that the figures include no call from Python. RocketMQ flushes in the
background (ASYNC_FLUSH, its default); our append ends when every byte is on disk.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_write import _WRITTEN, first_rows
from measure import report

import rmqstore

_BYTES_A_ROW = 1000
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from interop.rocketmq import RocketMQ, resolve_jars  # noqa: E402 - found by the path above


def java_messages(real: RocketMQ, batches: list[Any]) -> Any:  # noqa: ANN401 - a java.util.ArrayList
    """Return the rows as MessageExtBrokerInner."""
    address = real.java.net.InetSocketAddress("127.0.0.1", 10911)
    inner_class = real.inner_class()
    decoder = real.rocketmq.common.message.MessageDecoder
    tags_code = inner_class.tagsString2tagsCode
    single = real.rocketmq.common.TopicFilterType.SINGLE_TAG
    messages = real.java.util.ArrayList()
    for row in (row for batch in batches for row in batch.to_pylist()):
        inner = inner_class()
        inner.setTopic(row["topic"])
        inner.setQueueId(row["queueId"])
        inner.setBody(row["body"])
        inner.setFlag(row["flag"])
        inner.setBornTimestamp(int(row["bornTimestamp"].timestamp() * 1000))
        inner.setBornHost(address)
        inner.setStoreHost(address)
        properties = dict(row["properties"])
        real.rocketmq.common.message.MessageAccessor.setProperties(inner, properties)
        inner.setPropertiesString(decoder.messageProperties2String(inner.getProperties()))
        inner.setTagsCode(tags_code(single, properties.get("TAGS")))
        messages.add(inner)
    return messages


def put_all(real: RocketMQ, root: Path, messages: Any, rounds: int) -> float:  # noqa: ANN401
    """Return the seconds in which RocketMQ puts all messages ``rounds`` times into a new store."""
    invoke = real.java.lang.invoke
    with real.open(root) as store:
        kinds = [real.rocketmq.common.message.MessageExtBrokerInner().getClass()]
        put = invoke.MethodHandles.lookup().unreflect(
            store.store.getClass().getMethod("putMessage", real.classes(*kinds))
        )
        consumer = invoke.MethodHandleProxies.asInterfaceInstance(
            real.java.lang.Class.forName("java.util.function.Consumer"), put.bindTo(store.store)
        )
        started = time.perf_counter()
        for _ in range(rounds):
            messages.forEach(consumer)
        store.wait(seconds=300)
        taken = time.perf_counter() - started
        queues = store.store.getConsumeQueueTable()
        n_messages = sum(
            queue.getMaxOffsetInQueue() for topic in queues.values() for queue in topic.values()
        )
    store.store.destroy()  # unmaps its files
    assert n_messages == rounds * len(messages), (
        f"{n_messages} of {rounds} x {len(messages)} messages are in the real queues"
    )
    return taken


def back_pages(folder: Path, n_bytes: int) -> None:
    """Make the machine provide the memory that a pass needs.

    A virtual machine gets a page from its host when the page is first used.
    """
    path = folder / "pages"
    with path.open("wb") as file:
        for _ in range(n_bytes >> 20):
            file.write(bytes(1 << 20))
    path.unlink()


def append_all(root: Path, batches: list[Any], rounds: int) -> float:
    """Return the seconds in which we append all messages ``rounds`` times to a new store.

    They end when every byte is on disk.
    """
    started = time.perf_counter()
    with rmqstore.create(root) as writer:
        for batch in rounds * batches:
            writer.append(batch)
    return time.perf_counter() - started


def main() -> None:
    """Run both writers in turn and print a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument(
        "--rounds",
        type=int,
        default=10,
        help="how often the messages are put, because making them is slow",
    )
    parser.add_argument("--passes", type=int, default=5)
    arguments = parser.parse_args()
    with rmqstore.open(arguments.store, broker_name="bench") as store:
        batches = first_rows(store.scan(columns=_WRITTEN), arguments.messages)
    with tempfile.TemporaryDirectory(dir=arguments.store.parent) as folder:
        real = RocketMQ("5.3.3", resolve_jars("5.3.3", ROOT / ".rocketmq"), Path(folder))
        theirs: list[float] = []
        ours: list[float] = []
        n_rows = sum(map(len, batches)) * arguments.rounds
        print(f"making {n_rows // arguments.rounds} messages in the JVM", file=sys.stderr)
        messages = java_messages(real, batches)
        gc.collect()
        gc.freeze()  # objects of py4j from the calls above must not affect the figures
        # the first pass warms up the JVM, which compiles meanwhile
        for number in range(arguments.passes + 1):
            target = Path(folder) / "target"
            back_pages(Path(folder), n_rows * _BYTES_A_ROW)
            put = put_all(real, target, messages, arguments.rounds)
            shutil.rmtree(target, ignore_errors=True)
            back_pages(Path(folder), n_rows * _BYTES_A_ROW)
            append = append_all(target, batches, arguments.rounds)
            shutil.rmtree(target)
            if number:
                theirs.append(put / n_rows * 1e6)
                ours.append(append / n_rows * 1e6)
            print(
                f"pass {number} of {arguments.passes}: {put:.2f} s, {append:.2f} s", file=sys.stderr
            )
        real.close()
    report(
        "real",
        "append beside putMessage",
        us_per_row=statistics.median(ours),
        real_us_per_row=statistics.median(theirs),
        times_as_fast=statistics.median(a / b for a, b in zip(theirs, ours, strict=True)),
        goal=2.0,
    )


if __name__ == "__main__":
    main()
