"""A stream follows a real broker and real producers; the real store then opens what it wrote."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

import rmqstore
from interop.background import BackgroundWork
from interop.broker import RealBroker
from interop.conftest import JARS
from interop.rocketmq import RocketMQ, resolve_jars, store_sizes
from written import require_valid

SIZES = store_sizes(1 << 20, 4000, 1000, 4000)
SECONDS = 60
_PAUSE_SECONDS = 0.002  # after each message: the query is to have some of the machine too
TOPIC, LATE_TOPIC, LATE_QUEUE = "Orders", "Late", 6

# Copies a store to another one by micro-batches until it is killed; with "once" it ends by itself.
COPY = """
import sys
from pyspark.sql import SparkSession
source, sink, checkpoint, once = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
reader = spark.readStream.format("rmqstore").option("startingOffsets", "earliest")
frame = reader.option("brokerName", "interop").load(source)
writer = frame.writeStream.format("rmqstore").option("checkpointLocation", checkpoint)
trigger = {"availableNow": True} if once == "once" else {"processingTime": "300 milliseconds"}
writer.trigger(**trigger).start(sink).awaitTermination()
"""


class Sender(BackgroundWork):
    """Sends messages with a real producer until the end; remembers those that were acknowledged."""

    def __init__(self, real: RocketMQ, namesrv_address: str) -> None:
        super().__init__()
        self._message = real.rocketmq.common.message.Message
        self._queue = real.rocketmq.common.message.MessageQueue
        self._client = real.rocketmq.client.producer.DefaultMQProducer("stream-producer")
        self._client.setNamesrvAddr(namesrv_address)
        self._client.setRetryTimesWhenSendFailed(0)  # or a message might be stored twice
        self._client.setSendMsgTimeout(2000)
        self._client.start()
        self.acknowledged: list[bytes] = []
        self.n_failed = 0
        self.sends_late = False

    def step(self, number: int) -> None:
        topic = LATE_TOPIC if self.sends_late and number % 5 == 0 else TOPIC
        body = f"{number} ".encode() * (1 + number % 50)
        arguments = [self._message(topic, f"T{number % 3}", f"k{number}", body)]
        if self.sends_late and topic == TOPIC and number % 7 == 0:
            arguments.append(self._queue(TOPIC, "interop", LATE_QUEUE))
        try:
            if self._client.send(*arguments).getSendStatus().toString() == "SEND_OK":
                self.acknowledged.append(body)
            time.sleep(_PAUSE_SECONDS)
        except Py4JError:  # the broker is gone, or does not have the topic yet
            self.n_failed += 1
            time.sleep(0.1)

    def wait_for(self, n_more: int, seconds: float = 90) -> None:
        goal, until = len(self.acknowledged) + n_more, time.monotonic() + seconds
        while len(self.acknowledged) < goal:
            self.check()
            assert time.monotonic() < until, f"{self.n_failed} messages could not be sent"
            time.sleep(0.05)

    def __exit__(self, *reason: object) -> None:
        try:
            super().__exit__(*reason)
        finally:
            self._client.shutdown()


class Query:
    """The copying query, in a process group of its own, which leaving the context ends."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._arguments = [str(source), str(folder / "sink"), str(folder / "checkpoint")]
        self._log, self._commits = folder / "query.log", folder / "checkpoint" / "commits"
        self._process: subprocess.Popen[bytes] | None = None
        self._start_of_log = 0  # in characters, of the run that was started last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def start(self, once: str = "on") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", COPY, *self._arguments, once]
        if self._log.exists():
            self._start_of_log = len(self._log.read_text(errors="replace"))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )
        return self._process

    def check(self) -> None:
        """Fail if the query has ended, but start it again where Spark itself gave up.

        It does so where a Python process does not answer within ten seconds, on a busy machine.
        """
        assert self._process is not None
        if self._process.poll() is not None:
            text = self._log.read_text(errors="replace")[self._start_of_log :]
            assert "Python worker failed to connect back" in text, text[-4000:]
            self.start()

    def wait_for_batches(self, n_more: int, seconds: float = 300) -> None:
        goal, until = self._n_batches() + n_more, time.monotonic() + seconds
        while self._n_batches() < goal:
            self.check()
            assert time.monotonic() < until, self._log.read_text(errors="replace")[-4000:]
            time.sleep(0.05)

    def _n_batches(self) -> int:
        return len(list(self._commits.glob("[0-9]*"))) if self._commits.exists() else 0

    def kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finish(self) -> None:
        code = self.start("once").wait(120)
        assert code == 0, self._log.read_text(errors="replace")[-4000:]


@contextmanager
def victim(home: Path) -> Iterator[Callable[[], RocketMQ]]:
    started: list[RocketMQ] = []

    def start() -> RocketMQ:
        folder = home / f"jvm{len(started)}"
        folder.mkdir()
        started.append(RocketMQ("5.3.3", resolve_jars("5.3.3", JARS), folder))
        return started[-1]

    try:
        yield start
    finally:
        if started:
            started[-1].kill()


def bodies(root: Path) -> dict[tuple[str, int], tuple[int, list[bytes]]]:
    """Return by queue the first queue offset and the bodies from there on."""
    found: dict[tuple[str, int], tuple[int, list[bytes]]] = {}
    with rmqstore.open(root) as store:
        for row in store.scan(columns="topic,queueId,queueOffset,body").read_all().to_pylist():
            first, listed = found.setdefault(
                (row["topic"], row["queueId"]), (row["queueOffset"], [])
            )
            assert row["queueOffset"] == first + len(listed)
            listed.append(row["body"])
    return found


@pytest.mark.interop
@pytest.mark.spark
def test_every_message_of_a_real_broker_comes_once_and_in_order(
    spark: SparkSession, rocketmq: RocketMQ, tmp_path: Path
) -> None:
    """One minute: the query and the broker are killed, topics and queues added, segments expire."""
    del spark  # only its environment is needed, which says where the packages are
    source, dice = tmp_path / "broker", random.Random(3)
    query = Query(source, tmp_path)

    def kill_query() -> None:
        time.sleep(dice.random())
        query.kill()
        query.start()
        query.wait_for_batches(2)

    with query, victim(tmp_path) as start_jvm:
        jvm = start_jvm()
        broker = RealBroker(jvm, source, SIZES)
        broker.set_queues(TOPIC, 4)
        started = time.monotonic()
        with Sender(rocketmq, broker.namesrv_address) as sender:
            sender.wait_for(100)
            query.start()
            query.wait_for_batches(2)
            broker.set_queues(LATE_TOPIC, 1)
            broker.set_queues(TOPIC, LATE_QUEUE + 1)
            sender.sends_late = True
            query.wait_for_batches(2)
            kill_query()
            jvm.kill()
            n_before = len(sender.acknowledged)
            jvm = start_jvm()
            broker = RealBroker(jvm, source, SIZES, broker.ports)
            for topic in (TOPIC, LATE_TOPIC):
                broker.announce(topic)
            sender.wait_for(500)
            query.wait_for_batches(2)
            kill_query()
            assert broker.expire(2) > 0
            query.wait_for_batches(3)
            while time.monotonic() - started < SECONDS:
                sender.wait_for(10)
            query.check()
        query.kill()
        broker.__exit__()
    query.finish()

    n_sent = len(sender.acknowledged)
    assert n_before < n_sent, "the producer went on after the broker came back"
    sent, copied = bodies(source), bodies(tmp_path / "sink")
    assert {(LATE_TOPIC, 0), (TOPIC, LATE_QUEUE)} <= copied.keys()
    assert sent.keys() <= copied.keys()
    assert any(first for first, _ in sent.values()), "no message has expired"
    for key, (first, listed) in sent.items():
        assert copied[key][0] == 0
        assert copied[key][1][first:] == listed, key
    everything = [body for _, listed in copied.values() for body in listed]
    assert len(everything) == len(set(everything)), "a message came twice"
    assert set(sender.acknowledged) <= set(everything), "a message is lost"
    require_valid(tmp_path / "sink")
    with rocketmq.open(tmp_path / "sink", **SIZES_OF_SINK) as real:
        for (topic, queue_id), (_, listed) in copied.items():
            assert real.queue_range(topic, queue_id) == (0, len(listed))
            if topic == LATE_TOPIC:
                served = [message["body"] for message in real.messages(topic, queue_id)]
                assert served == listed


# Those of RocketMQ itself.
SIZES_OF_SINK: dict[str, Any] = {}
