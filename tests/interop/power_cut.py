"""A broker that loses power while a stream follows it: store, damage and query."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections import Counter
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql.types import StructType

import rmqstore
from interop.lost_pages import Durable, Queue, cut_files
from interop.rocketmq import RealStore, RocketMQ
from pyspark_rmqstore.options import parse_stream_options
from pyspark_rmqstore.stream_reader import RmqStoreStreamReader
from rmqstore.errors import RmqStoreError

MOST_TRIGGERS = 600
QUEUES = [(topic, queue_id) for topic in ("Ta", "Tb", "Tc") for queue_id in range(3)]
SCHEMA = (
    StructType()
    .add("topic", "string")
    .add("queueId", "integer")
    .add("queueOffset", "long")
    .add("body", "string")
)


class Query:
    """A streaming query as Spark drives it: it plans, notes and reads; a restart plans again."""

    def __init__(self, root: Path, options: dict[str, str], dice: random.Random) -> None:
        given = {
            "startingOffsets": "earliest", "failOnDataLoss": "false", "brokerName": "b", **options,
        }  # fmt: skip
        self._options, self._dice = {"path": str(root), **given}, dice
        self._planned: dict[str, Any] | None = None
        self.delivered: list[str] = []
        self.failures: list[str] = []
        self.restart()
        self._offset = kept(self._reader.initialOffset())

    def restart(self) -> None:
        self._reader = RmqStoreStreamReader(SCHEMA, parse_stream_options(self._options))

    def trigger(self, *, may_die: float = 0.0) -> list[str]:
        """Run a micro-batch, which may die on the way; return what it delivered."""
        try:
            return self._run(may_die)
        except RmqStoreError as err:
            self.failures.append(f"{type(err).__name__}: {err}")
            self.restart()
            return []

    def _run(self, may_die: float) -> list[str]:
        if self._planned is None:
            end = kept(self._reader.latestOffset(self._offset, self._reader.getDefaultReadLimit()))
            if end == self._offset:
                return []
            self._planned = end
        if self._dice.random() < may_die:
            self.restart()
            return []
        parts = self._reader.partitions(self._offset, self._planned)
        rows = [
            row["body"]
            for part in parts
            for batch in self._reader.read(part)
            for row in batch.to_pylist()
        ]
        if self._dice.random() < may_die:
            self.restart()
            return []
        self._reader.commit(self._planned)
        self._offset, self._planned = self._planned, None
        found = [number_of(row.encode()) for row in rows]
        self.delivered += found
        return found

    def drain(self, most: int) -> None:
        idle = 0
        for _ in range(most):
            offset = self._offset
            self.trigger()
            idle = idle + 1 if self._offset == offset and self._planned is None else 0
            if idle == 3:
                return
        raise AssertionError(f"no end after {most} triggers: {self.failures[-3:]}")


def number_of(body: bytes) -> str:
    return body.decode().split(".")[0]


def kept(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


class Served(NamedTuple):
    """The messages of the real store, and those that may be delivered or not.

    If a power cut took the first page of a queue, a second recovery of 5.3.3 may leave units that
    point to records of other queue offsets, or leave out records of the log.
    """

    rightly: Counter[str]
    wrongly: set[str]  # under other queue offsets than their records say
    in_log: set[str]

    @property
    def all(self) -> set[str]:
        return {*self.rightly, *self.wrongly, *self.in_log}


class Trial:
    """One broker, the power cuts that it sees, and a stream over its store.

    Attributes:
        present: the messages that the store has, as far as is known.
        lost_power: whether power was cut and no recovery is done yet.
    """

    def __init__(self, rocketmq: RocketMQ, folder: Path, seed: int, undertaker: Executor) -> None:
        """Start the broker.

        ``undertaker`` shuts down brokers that are no longer needed, which takes seconds each.
        """
        self._rocketmq, self._folder, self._undertaker = rocketmq, folder, undertaker
        self._dice = random.Random(seed)
        self._n_starts = 0
        self.root = folder / "store"
        self.root.mkdir()
        dice = self._dice
        self._sizes = {
            "mappedFileSizeCommitLog": dice.choice([1 << 15, 1 << 17]),
            "mappedFileSizeConsumeQueue": dice.choice([20 * 250, 20 * 1000]),
            "maxHashSlotNum": 50, "maxIndexNum": 400,
            "maxMessageSize": 1 << 16,  # each store and thread keeps a buffer of that size
        }  # fmt: skip
        # all messages of one size, so that new records end where old ones did
        self._is_even = dice.random() < 0.5
        self._few_queues = dice.random() < 0.3
        self._may_die = dice.choice([0.0, 0.15])
        limits: list[dict[str, str]] = [
            {},
            {"maxOffsetsPerTrigger": str(dice.randint(1, 30))},
            {"maxBytesPerTrigger": str(dice.randint(300, 6000))},
        ]
        self._options = dice.choice(limits)
        self._numbers = itertools.count()
        self.present: set[str] = set()
        self.lost_power = False
        self.stale: list[str] = []
        self.real = self._start()
        self._durable = Durable(0, {})
        self.query = Query(self.root, self._options, dice)

    def look(self, dice: random.Random | None = None) -> None:
        """Let the query trigger, or not, now and then with another process."""
        dice = dice or self._dice
        for _ in range(dice.choice([0, 0, 1, 2])):
            if dice.random() < 0.1:
                self.query.restart()
            self._judge(self.query.trigger(may_die=self._may_die))

    def _judge(self, delivered: list[str]) -> None:
        self.stale += [body for body in delivered if body not in self.present]

    def write(self) -> None:
        dice = self._dice
        sure = dice.randrange(4)
        for burst in range(dice.randint(1, 6)):
            queues = QUEUES[: 2 if self._few_queues else None]
            chosen = dice.sample(queues, dice.randint(1, len(queues)))
            for _ in range(dice.randint(1, 40)):
                self._put(dice.choice(chosen))
            self.look()
            if burst == sure:
                self._note_durable()
            if dice.random() < 0.5:
                self.real.wait()
                self.look()

    def _put(self, queue: Queue) -> None:
        name = f"{next(self._numbers):06}"
        pad = 100 if self._is_even else self._dice.choice([0, 50, self._dice.randrange(3000)])
        self.real.put(*queue, f"{name}.{'x' * pad}".encode(), tags="t")
        self.present.add(name)

    def _note_durable(self) -> None:
        self.real.wait()
        ends = {key: self.real.queue_range(*key)[1] for key in QUEUES}
        self._durable = Durable(self.real.store.getMaxPhyOffset(), ends)

    def _start(self) -> RealStore:
        """Start a broker with its own path to the store, so that a dead one cannot change it."""
        self._n_starts += 1
        name = self._folder / f"broker-{self._n_starts}"
        name.symlink_to(self.root)
        return self._rocketmq.open(name, **self._sizes)

    def lose_power(self) -> None:
        """Replace the store by what a power cut leaves: a live copy less unflushed bytes."""
        copy, dead = self._folder / "copy", self._folder / f"dead-{self._n_starts}"
        shutil.copytree(self.root, copy)
        self.root.rename(dead)
        self.real.root.unlink()
        self.real.root.symlink_to(dead)
        cut_files(copy, self._durable, self._dice)
        copy.rename(self.root)
        self.close()
        self.lost_power = True
        self.look()

    def start_again(self) -> None:
        """Start the broker again, which recovers its store, while the query triggers."""
        # how long a recovery takes is to change nothing of what follows
        dice = random.Random(self._dice.random())
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(self._start)
            while not opening.done():
                self.look(dice)
            self.real = opening.result()
        self.lost_power = False
        self.look()
        self.real.wait()
        self.present = self.dump().all
        self._note_durable()

    def dump(self) -> Served:
        decode = self._rocketmq.rocketmq.common.message.MessageDecoder.decode
        rightly, wrongly = Counter[str](), set[str]()
        for key in QUEUES:
            at, end = self.real.queue_range(*key)
            while at < end:
                served = self.real.store.getMessage("interop", *key, at, 1, None)
                for message in filter(None, map(decode, served.getMessageBufferList() or ())):
                    number = number_of(bytes(message.getBody()))
                    if (message.getTopic(), message.getQueueId(), message.getQueueOffset()) == (
                        *key,
                        at,
                    ):
                        rightly[number] += 1
                    else:
                        wrongly.add(number)
                at += 1
                served.release()
        with rmqstore.open(self.root) as store:
            rows = (
                store.scan(scan="commitlog", columns="commitLogOffset,body").read_all().to_pylist()
            )
        end = self.real.store.getMaxPhyOffset()
        in_log = {number_of(row["body"]) for row in rows if row["commitLogOffset"] < end}
        return Served(rightly, wrongly, in_log)

    def run(self) -> None:
        self.write()
        for _ in range(self._dice.choice([1, 1, 2])):
            self.lose_power()
            self.start_again()
            for _ in range(self._dice.randint(1, 2)):
                self.write()
        self.real.wait()
        self.look()
        self.query.drain(MOST_TRIGGERS)

    def judge(self) -> None:
        """Hold what was delivered against what the real store serves in the end."""
        served, delivered = self.dump(), Counter(self.query.delivered)
        assert not [number for number, count in delivered.items() if count > 1], "delivered twice"
        assert not served.rightly.keys() - delivered.keys(), "never delivered"
        assert not self.stale, "delivered, though the store did not have it"
        assert not self.query.failures, f"triggers that failed: {self.query.failures}"
        fresh = Query(self.root, {}, self._dice)
        fresh.drain(MOST_TRIGGERS)
        assert not fresh.failures
        assert len(fresh.delivered) == len(set(fresh.delivered))
        assert not served.rightly.keys() - set(fresh.delivered), "never delivered to a new query"
        extra = set(fresh.delivered) - served.all
        assert not extra, f"delivered to a new query, though the store does not have it: {extra}"

    def close(self) -> None:
        self._undertaker.submit(self.real.store.shutdown)
