"""A name server and brokers in threads, which serve queues built by hand and store what is sent."""

from __future__ import annotations

import json
import random
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from fake_server import FakeServer, Reply, Request
from rmqstore.live.live_cluster import LiveCluster
from rmqstore.live.location import LiveLocation
from rmqstore.live.writer import LiveWriter
from store_builder import Record, Store, java_hash, pack, properties

Key = tuple[str, int]  # topic and queue id
UNITS_PER_FILE = 1000  # of a queue
REGION = "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"  # what a broker adds


class FakeNames(FakeServer):
    """A name server.

    Attributes:
        topics: by name and broker: queues to read, queues to write to, permissions.
        brokers: the addresses of brokers, by name and broker id.
        of_routes: what else routes say.
    """

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[str, dict[str, tuple[int, int, int]]] = {}
        self.brokers: dict[str, dict[int, str]] = {}
        self.of_routes: dict[str, Any] = {}

    def answer(self, request: Request) -> Reply:
        if request.code == 206:
            return Reply(body=json.dumps({"topicList": [*self.topics]}).encode())
        assert request.code == 105
        queues = self.topics.get(request.fields["topic"])
        if queues is None:
            return Reply(17, remark="No topic route info in name server for the topic")
        route = {
            "queueDatas": [
                {"brokerName": name, "readQueueNums": read, "writeQueueNums": write, "perm": perm}
                for name, (read, write, perm) in queues.items()
            ],
            **self.of_routes,
        }
        # Numbers are keys without quotes, as fastjson writes them.
        brokers = ",".join(
            f'{{"brokerAddrs":{{{",".join(f"{n}:{json.dumps(a)}" for n, a in replicas.items())}}},'
            f'"brokerName":"{name}","cluster":"C"}}'
            for name, replicas in self.brokers.items()
            if name in queues
        )
        return Reply(body=f'{{"brokerDatas":[{brokers}],{json.dumps(route)[1:]}'.encode())


@dataclass
class Stored:
    place: int
    record: bytes
    physical_offset: int
    store_timestamp: int
    tags_code: int = 0
    count: int = 1

    @property
    def end(self) -> int:
        return self.place + self.count


@dataclass
class FakeQueue:
    """A queue, from ``first`` on; places without a record are holes.

    The messages before ``gone`` are deleted, and the queue is not corrected yet.
    """

    first: int = 0
    stored: list[Stored] = field(default_factory=list)
    gone: int = 0

    @property
    def end(self) -> int:
        return self.stored[-1].end if self.stored else self.first


class FakeBroker(FakeServer):
    """A broker.

    Attributes:
        queues: what is there.
        n_served: how many queues of a topic may be read, if not all.
        limit: messages in an answer.
        is_old: whether a search by time ends as in 4.x.
        committed: the offsets of groups, by group, topic and queue id.
        attributes: of topics; None for a broker that knows of none.
        together: how many requests that send to one queue came at once at most.
        batches: the messages of each request that was stored, by queue.
        sent: the requests that were stored.
        send_code: of answers to these.
        clock: the store time of what is sent.
    """

    def __init__(self, name: str, store: Store | None = None) -> None:
        super().__init__()
        self.name, self.limit, self.is_old = name, 32, False
        self.committed: dict[tuple[str, str, int], int] = {}
        self.attributes: dict[str, dict[str, str]] | None = {}
        self.queues: dict[Key, FakeQueue] = {}
        self.n_served: dict[str, int] = {}
        self.together, self.send_code, self.clock = 0, 0, 1_800_000_000_000
        self.batches: dict[Key, list[list[tuple[int, bytes, bytes]]]] = {}
        self.sent: list[Request] = []
        self._end = 0 if store is None else store.end
        self._lock = threading.Lock()
        if store is not None:
            self._take(store)

    def _take(self, store: Store) -> None:
        times = {at.physical_offset: at.record.store_timestamp for at in store.placed}
        for key, units in store.queues.items():
            queue = self.queues[key] = FakeQueue(store.first_units.get(key, 0))
            for place, (physical_offset, size, tags_code) in enumerate(units, queue.first):
                start = physical_offset - physical_offset % store.segment_bytes
                position = physical_offset - start
                record = bytes(store.segments[start][position : position + size])
                stored_at = times[physical_offset]
                queue.stored.append(Stored(place, record, physical_offset, stored_at, tags_code))

    def come(self, requests: list[Request]) -> None:
        sends = [request.key for request in requests if request.code in (310, 320)]
        self.together = max([self.together, *(sends.count(key) for key in sends)])

    def answer(self, request: Request) -> Reply:
        if request.code in (310, 320):
            with self._lock:
                return self._store(request)
        if request.code in (11, 14, 29, 30, 31):
            return self._of_queue(request)
        if request.code == 28:
            table = {"table": {"dispatchBehindBytes": "0", "brokerVersionDesc": "V5_3_3"}}
            return Reply(body=json.dumps(table).encode())
        if request.code == 33:
            place = int(request.fields["offset"])
            for queue in self.queues.values():
                for stored in queue.stored:
                    if stored.physical_offset == place:
                        return Reply(body=stored.record)
            return Reply(1, remark="can not find message by the offset")
        if request.code == 351 and self.attributes is not None:
            attributes = self.attributes.get(request.fields["topic"], {})
            return Reply(body=json.dumps({"attributes": attributes}).encode())
        return Reply(3, remark=f"request type {request.code} not supported")

    def _of_queue(self, request: Request) -> Reply:
        queue = self.queues.get(request.key, FakeQueue())
        if request.code == 11:
            return self._pull(request, queue)
        if request.code == 14:
            at = self.committed.get((request.fields["consumerGroup"], *request.key))
            return Reply(22) if at is None else Reply(fields={"offset": str(at)})
        if request.code == 29:
            search = self._nearest if self.is_old else self._first
            found = search(queue, int(request.fields["timestamp"]))
        else:
            found = queue.end if request.code == 30 else queue.first
        return Reply(fields={"offset": str(found)})

    @staticmethod
    def _first(queue: FakeQueue, timestamp: int) -> int:
        later = (each.place for each in queue.stored if each.store_timestamp >= timestamp)
        return next(later, queue.end)

    @staticmethod
    def _nearest(queue: FakeQueue, timestamp: int) -> int:
        """Return the last one of the time, else the nearer one, as ConsumeQueue of 4.x may."""
        return max(
            queue.stored, key=lambda each: (-abs(each.store_timestamp - timestamp), each.place)
        ).place

    def _pull(self, request: Request, queue: FakeQueue) -> Reply:
        topic, queue_id = request.key
        if queue_id >= self.n_served.get(topic, 1 << 31):
            served = f"topic:[{topic}] topicConfig.readQueueNums:[{self.n_served[topic]}]"
            return Reply(29, remark=f"queueId[{queue_id}] is illegal, {served} consumer:[/x]")
        at, n_asked = (int(request.fields[name]) for name in ("queueOffset", "maxMsgNums"))
        subscription = request.fields["subscription"]
        if at < queue.first:
            return told(queue, 21, "OFFSET_TOO_SMALL", queue.first)
        if at == queue.end:
            return told(queue, 19, "OFFSET_OVERFLOW_ONE", at)
        if at > queue.end:
            return told(queue, 21, "OFFSET_OVERFLOW_BADLY", queue.end)
        looked = n_asked if subscription == "*" and at >= queue.gone else max(n_asked, 800)
        until = min(at + looked, queue.end)
        if at < queue.gone:  # as far as the file of the queue reaches
            until = min(until, at - at % UNITS_PER_FILE + UNITS_PER_FILE)
        there = max(at, queue.gone)
        within = [each for each in queue.stored if each.end > there and each.place < until]
        if at < queue.gone and not within:
            return told(queue, 20, "MESSAGE_WAS_REMOVING", until)
        if subscription != "*":
            codes = {java_hash(tag.strip()) for tag in subscription.split("||")}
            within = [each for each in within if each.tags_code in codes]
            if not within:
                return told(queue, 20, "NO_MATCHED_MESSAGE", until)
        if not within:
            following = next((each.place for each in queue.stored if each.place >= at), queue.end)
            return told(queue, 19, "OFFSET_FOUND_NULL", following)
        taken = within[: min(self.limit, n_asked)]
        following = taken[-1].end
        if at >= queue.gone and len(taken) == len(within):
            following = max(following, until)
        return told(queue, 0, "FOUND", following, b"".join(each.record for each in taken))

    def _store(self, request: Request) -> Reply:
        fields = request.fields
        messages = decoded(request)
        key = request.key
        queue = self.queues.setdefault(key, FakeQueue())
        first = queue.end
        self.sent.append(request)
        self.batches.setdefault(key, []).append(messages)
        is_delayed = any("DELAY" in pairs(stored) for _, _, stored in messages)
        for flag, body, stored in messages if not is_delayed else []:
            record = Record(
                topic=key[0], queue_id=key[1], queue_offset=queue.end, body=body,
                properties=stored + REGION.encode(), flag=flag, sys_flag=int(fields["f"]),
                born_timestamp=int(fields["g"]), store_timestamp=self.clock,
            )  # fmt: skip
            packed = pack(record, self._end)
            queue.stored.append(Stored(queue.end, packed, self._end, self.clock))
            self._end += len(packed)
        where = {"queueOffset": str(first), "queueId": fields["e"], "msgId": "00"}
        return Reply(self.send_code, where, remark="of the send")


def told(queue: FakeQueue, code: int, remark: str, following: int, records: bytes = b"") -> Reply:
    fields = {
        "nextBeginOffset": str(following), "minOffset": str(queue.first),
        "maxOffset": str(queue.end), "suggestWhichBrokerId": "0",
    }  # fmt: skip
    return Reply(code, fields, records, remark)


def decoded(request: Request) -> list[tuple[int, bytes, bytes]]:
    """Return the flags, bodies and properties of the messages that a request sends."""
    if request.fields["m"] == "false":
        return [(int(request.fields["h"]), request.body, request.fields["i"].encode())]
    found, at, body = [], 0, request.body
    while at < len(body):
        size, _, _, flag, length = struct.unpack_from(">5i", body, at)
        start = at + 20
        (n_properties,) = struct.unpack_from(">h", body, start + length)
        stored = body[start + length + 2 : at + size]
        assert len(stored) == n_properties
        found.append((flag, body[start : start + length], stored))
        at += size
    return found


def pairs(stored: bytes) -> dict[str, str]:
    given = [each.partition("\x01") for each in stored.decode().split("\x02") if each]
    return {name: value for name, _, value in given}


class FakeCluster:
    """A name server and brokers, by the names of their stores; a context manager."""

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self.names = FakeNames()
        self.brokers = {name: FakeBroker(name, store) for name, store in stores.items()}
        for name, broker in self.brokers.items():
            self.names.brokers[name] = {0: broker.address}
            for topic, queue_id in broker.queues:
                counts = self.names.topics.setdefault(topic, {})
                count = max(counts.get(name, (0,))[0], queue_id + 1)
                counts[name] = (count, count, 6)

    @property
    def servers(self) -> list[FakeServer]:
        return [self.names, *self.brokers.values()]

    @property
    def uri(self) -> str:
        return f"rocketmq://{self.names.address}"

    @property
    def location(self) -> LiveLocation:
        return LiveLocation.parse(self.uri, {"timeout": "2"})

    def set_queues(self, topic: str, broker: str, read: int, write: int) -> None:
        """Give a topic other numbers of queues, as mqadmin updateTopic does."""
        self.names.topics[topic][broker] = (read, write, 6)
        self.brokers[broker].n_served[topic] = read

    def open(self) -> LiveCluster:
        return LiveCluster(self.location)

    def writer(self, *args: Any, **options: Any) -> LiveWriter:
        return LiveWriter(self.location, *args, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()


def put_behind_proxy(server: FakeServer) -> set[int]:
    """Let a server answer as through a proxy: some requests are refused, some answers dropped.

    A proxy drops an answer while others wait in the buffer of the connection.
    Source: AbstractRemotingActivity.java.

    Returns:
        The numbers of the requests whose answers are dropped, as they come.
    """
    dropped: set[int] = set()
    direct = server.answer

    def come(requests: list[Request]) -> None:
        large = [request.opaque for request in requests if request.code in (11, 105)]
        dropped.update(large[1:])

    def answer(request: Request) -> Reply:
        if request.code in (33, 351):
            return Reply(3, remark=f" request type {request.code} not supported")
        reply = direct(request)
        return replace(reply, fields={**reply.fields, "MSG_REGION": "", "TRACE_ON": "false"})

    server.waits, server.come, server.answer = 0.01, come, answer  # type: ignore[method-assign]
    server.mangle = lambda request, frame: b"" if request.opaque in dropped else frame
    return dropped


def fill(
    store: Store, counts: Mapping[Key, int], dice: random.Random, tags: Iterable[str] = ("A", "B")
) -> Store:
    choice = [*tags]
    left = dict(counts)
    number = len(store.placed)
    while left:
        for topic, queue_id in [*left]:
            left[topic, queue_id] -= 1
            if not left[topic, queue_id]:
                del left[topic, queue_id]
            tag = dice.choice(choice)
            given = {"KEYS": f"k{number} all", "TAGS": tag, "UNIQ_KEY": f"{number:032X}"}
            body = dice.choice([b"", b"text", dice.randbytes(200)])
            host = dice.choice([b"\x7f\x00\x00\x01", bytes(range(16))])
            store.append(
                Record(
                    topic=topic, queue_id=queue_id, body=body, properties=properties(given),
                    flag=number % 3, born_host=(host, 1000 + number % 7),
                    store_timestamp=1_700_000_000_000 + number // 3,
                ),
                tags=tag,
            )  # fmt: skip
            number += 1
    return store


def one_queue(count: int, *, topic: str = "T", tags: Iterable[str] = ("A", "B")) -> Store:
    return fill(Store(), {(topic, 0): count}, random.Random(count), tags)


def offsets(cluster: LiveCluster, **options: object) -> list[int]:
    found = cluster.scan(columns="queueOffset", **options).read_all()
    return found.column("queueOffset").to_pylist()
