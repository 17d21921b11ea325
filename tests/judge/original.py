"""The original as judge: what a real broker makes of a store, as a plain value.

It opens a store in place as a starting broker does, serves what a consumer would get, takes one
message more for each queue, is closed cleanly, and opens the store again. The services that act
later are not started: nothing is delivered, expired or compacted.
"""

from __future__ import annotations

import subprocess
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict

from py4j.protocol import Py4JError, Py4JJavaError

from judge.jvm import OUT_OF_MEMORY, Jvm, field_of, shut_down
from ports import free_ports

LIMIT = 20  # seconds for a store
_PATIENCE = 2  # seconds without a record that is dispatched
_STORES_A_JVM = 200
_KILLED = -9
_WHOLE, _PAGE = 4096, 32  # messages to ask for at once: all of them, and what a consumer does
_KEYS = 64  # records that a look-up returns at most
_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
_HEAD, _QUEUE_OFFSET, _PHYSICAL_OFFSET = 36, slice(20, 28), slice(28, 36)  # of a record
_LMQ, _DELAYS, _TIMERS = "%LMQ%", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
_QUICKLY: dict[str, Any] = {  # changes neither an answer nor what is on disk after a clean end
    "brokerName": "interop", "haListenPort": 0, "longPollingEnable": False,
    "flushCommitLogTimed": False,
    **{f"maxTransfer{what}OnMessageIn{where}": 1 << 30
       for what in ("Bytes", "Count") for where in ("Memory", "Disk")},
}  # fmt: skip
_PARENT = ("Parent", 0)  # of a message that is put to a light queue
_PLUG_IN = "org.apache.rocketmq.tieredstore.TieredMessageStore"
_FOLDERS = ("commitlog", "consumequeue", "batchconsumequeue", "index", "dledger-", "tieredstore")
_OF_ROCKSDB = ("MANIFEST", "OPTIONS", "CURRENT", "IDENTITY", "LOCK", "LOG")

Queue = tuple[str, int]
Rows = dict[Queue, list[list[int]]]
Told = dict[str, Any]


class Asked(NamedTuple):
    """What is asked besides: keys to look up, and queues that the store may have lost."""

    keys: tuple[tuple[str, str], ...] = ()
    queues: tuple[Queue, ...] = ()
    again: bool = True


class Answer(TypedDict, total=False):
    """What the original makes of a store; after a refusal there is nothing else."""

    starts: bool
    refusal: str  # "tables", "store", "timers", "delays", perhaps with an exception, or "start: …",
    # "asked: …" after the start; "exits", "hangs", "memory"
    log: list[int]
    queues: dict[str, list[int]]
    served: dict[str, list[list[int]]]
    garbled: dict[str, list[list[int]]]  # what it serves besides, bytes that are no record
    stuck: dict[str, list[Any]]  # the offset that a consumer does not get beyond, and why
    keys: dict[str, list[int]]
    groups: dict[str, int]
    delayed: dict[str, Any]  # by level; of timers the queue offset it goes on at, and how many wait
    files: dict[str, Any]
    next: dict[str, int | None]
    again: Answer | None


class Original:
    """The JVM of a version, as a context manager; if it ends, the next store gets another one."""

    def __init__(self, home: Path, version: str = "5.3.3") -> None:
        self._version, self._home = version, home
        self._jvm: Jvm | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def answer(self, root: Path, settings: Mapping[str, Any], asked: Asked | None = None) -> Answer:
        """Return what the original makes of the store at ``root``, which it changes.

        Args:
            settings: what the configuration file of the broker says; folders relative to root.
        """
        if self._jvm is None or self._jvm.stores >= _STORES_A_JVM:
            self._end()
            self._jvm = Jvm(self._version, self._home)
        answer = Answer(starts=False, refusal="")
        too_long = threading.Timer(LIMIT, self._jvm.process.kill)
        too_long.start()
        try:
            self._jvm.count()
            _ask(self._jvm, root, settings, asked or Asked(), answer)
        except Py4JJavaError as err:
            answer["refusal"] = f"asked: {_exception(err)}"
            self._end()
        except (Py4JError, OSError):
            try:
                code = self._jvm.process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                self._end()
                raise
            died = {OUT_OF_MEMORY: "memory", _KILLED: "hangs"}.get(code, "exits")
            if "again" in answer:
                answer["again"] = Answer(starts=False, refusal=died)
            else:
                answer["refusal"] = died
            self._end()
        finally:
            too_long.cancel()
        return answer

    def _end(self) -> None:
        if self._jvm is not None:
            self._jvm.end()
            self._jvm = None


def _ask(jvm: Jvm, root: Path, settings: Mapping[str, Any], asked: Asked, answer: Answer) -> None:
    """Fill the answer step by step, so that it has what is known before a JVM dies."""
    before = _files(root)
    opened = _Opened(jvm, root, settings, asked)
    try:
        answer["refusal"] = opened.start()
        if answer["refusal"]:
            return
        answer.update(opened.state(), starts=True, files=_changed(before, _files(root)))
        answer["keys"] = {f"{topic} {key}": opened.find(topic, key) for topic, key in asked.keys}
        answer["next"] = opened.put_next()
        answer["again"] = None
        first = opened.state()
    finally:
        opened.close()
    if asked.again:
        opened = _Opened(jvm, root, settings, opened.asked)
        try:
            again = Answer(starts=False, refusal=opened.start())
            if not again["refusal"]:
                again.update(opened.state(), starts=True)
        finally:
            opened.close()
        if again != {"starts": True, "refusal": "", **first}:
            answer["again"] = again


class _Opened:
    """A store that is opened as a broker opens it, where there is one, or else by itself."""

    def __init__(self, jvm: Jvm, root: Path, settings: Mapping[str, Any], asked: Asked) -> None:
        self._jvm, self._root, self.asked = jvm, root, asked
        self._settings = self._completed(settings)
        self._has_timers, self._is_dledger = (
            str(self._settings.get(name)).lower() == "true"
            for name in ("timerWheelEnable", "enableDLegerCommitLog")
        )
        self._controller = self._store = self._stats = None
        self._is_started = False

    def _completed(self, settings: Mapping[str, Any]) -> Told:
        """Return the settings with absolute folders, and with what they leave to the store."""
        found = {**_QUICKLY, **settings, "storePathRootDir": self._root}
        if any(name.startswith("tiered") for name in settings):
            found = {"messageStorePlugIn": _PLUG_IN, "tieredStoreFilePath": "tieredstore", **found}
        for name in found.keys() - {"storePathRootDir"}:
            if name.startswith(("storePath", "tieredStoreFilePath")):
                paths = str(found[name]).split(",")
                found[name] = ",".join(str(self._root / path) for path in paths)
        if "dLegerPeers" in found:
            host, _, _ = str(found["dLegerPeers"]).rpartition(":")
            found["dLegerPeers"] = f"{host}:{free_ports(1)[0]}"
        of_timers = ("timerwheel", "timerlog", f"consumequeue/{_TIMERS}")
        has_timers = any((self._root / name).exists() for name in of_timers)
        return {"timerWheelEnable": has_timers, **found}

    def start(self) -> str:
        """Load and start the store; return what refuses, if anything does."""
        part = "settings"
        try:
            for part, load in self._loads():
                if not load():
                    return part
            part = "start"
            self._store.start()
            self._is_started = True
            if self._is_dledger:
                self._wait_for_leader()
            self._wait()
        except Py4JJavaError as err:
            return f"{part}: {_exception(err)}"
        return ""

    def _loads(self) -> Iterator[tuple[str, Callable[[], bool]]]:
        """Yield what a broker loads one after the other, each with its name."""
        jvm, properties = self._jvm, self._jvm.properties(self._settings)
        rocketmq = jvm.rocketmq
        config = jvm.configured(rocketmq.store.config.MessageStoreConfig(), properties)
        broker = jvm.configured(rocketmq.common.BrokerConfig(), properties)
        if not jvm.has_broker:
            self._store = self._store_alone(config, broker)
            if not jvm.is_5:  # what is due would be delivered
                field_of(self._store.getScheduleMessageService(), "started").set(True)
            yield "store", self._store.load
            return
        server = rocketmq.remoting.netty.NettyServerConfig()
        controller = rocketmq.broker.BrokerController(broker, server, None, config)
        self._controller, self._stats = controller, controller.getBrokerStatsManager()
        controller.getConfiguration().registerConfig(properties)
        yield "tables", controller.initializeMetadata
        yield "store", controller.initializeMessageStore
        self._store = controller.getMessageStore()
        if self._is_dledger:  # a leader would begin to deliver
            elector = self._store.getCommitLog().getdLedgerServer().getDLedgerLeaderElector()
            handlers = field_of(elector, "roleChangeHandlers")
            handlers.removeAll(handlers)
        yield "store", self._store.load
        if self._has_timers:
            yield "timers", controller.getTimerMessageStore().load
        yield "delays", controller.getScheduleMessageService().load

    def _store_alone(self, config: Any, broker: Any) -> Any:
        rocketmq = self._jvm.rocketmq
        self._stats = rocketmq.store.stats.BrokerStatsManager("interop", False)
        arguments = [config, self._stats, None, broker]
        if self._jvm.is_5:
            path = self._root / "config/topics.json"
            text = path.read_text(errors="replace") if path.exists() else ""
            body = "org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper"
            table = rocketmq.remoting.protocol.RemotingSerializable.fromJson
            arguments.append(table(text or "{}", self._jvm.class_of(body)).getTopicConfigTable())
        is_rocksdb = self._settings.get("storeType") == "defaultRocksDB"
        kind = "RocksDBMessageStore" if is_rocksdb else "DefaultMessageStore"
        return getattr(rocketmq.store, kind)(*arguments)

    def _wait(self) -> None:
        """Wait until queues and index are built as far as the log goes, or as it gets."""
        behind, since = 0, time.monotonic()
        while (now := self._store.dispatchBehindBytes()) > 0:
            if now != behind:
                behind, since = now, time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                return
            time.sleep(0.005)

    def _wait_for_leader(self) -> None:
        server = self._store.getCommitLog().getdLedgerServer()
        entries, member = server.getDLedgerStore(), server.getMemberState()
        while not member.isLeader() or entries.getLedgerEndIndex() != entries.getCommittedIndex():
            time.sleep(0.01)
        self._wait()
        self._store.recoverTopicQueueTable()

    def _ranges(self) -> dict[Queue, list[int]]:
        """Return where each queue begins and ends."""
        store = self._store
        has_table = store.getQueueStore() if self._jvm.is_5 else store
        found = {
            (queue["topic"], queue["queueId"]): [
                queue["minOffsetInQueue"],
                queue["maxOffsetInQueue"],
            ]
            for of_topic in self._jvm.value(has_table.getConsumeQueueTable()).values()
            for queue in of_topic.values()
        }
        if (
            "rocksdb" in str(self._settings).lower()
        ):  # it does not list queues before they are asked for
            found = dict.fromkeys(self.asked.queues) | found
        if "tieredStoreFilePath" in self._settings or None in found.values():
            found = {
                queue: [store.getMinOffsetInQueue(*queue), store.getMaxOffsetInQueue(*queue)]
                for queue in found
            }
        return dict(sorted(found.items()))

    def _pages(self, queue: Queue, count: int) -> Callable[[int], int]:
        """Return how many messages a consumer asks for at an offset.

        It stops where the local store begins, as a tier has some of that too, at other places.
        """
        if "tieredStoreFilePath" not in self._settings:
            return lambda _: count
        store = field_of(self._store, "next")
        end = store.getMaxOffsetInQueue(*queue)
        offsets = range(store.getMinOffsetInQueue(*queue), end)
        is_local = partial(store.checkInStoreByConsumeOffset, *queue)
        local = next(filter(is_local, offsets), end)
        return lambda at: min(count, local - at) if at < local else count

    def state(self) -> Told:
        """Return what it has and serves now."""
        ranges = self._ranges()
        log = [self._store.getMinPhyOffset(), self._store.getMaxPhyOffset()]
        told = {"log": log, "queues": _named(ranges), "groups": {}, "delayed": {}}
        if self._controller is not None:
            offsets = self._controller.getConsumerOffsetManager().getOffsetTable()
            for name, of_group in self._jvm.value(offsets).items():
                topic, _, group = name.partition("@")
                told["groups"] |= {f"{group} {topic}-{at}": of_group[at] for at in of_group}
            delays = self._controller.getScheduleMessageService().getOffsetTable()
            told["delayed"] = self._jvm.value(delays)
            if self._has_timers:
                timers = self._controller.getTimerMessageStore()
                waiting = timers.getTimerWheel().getAllNum(timers.getCurrReadTimeMs())
                told["delayed"]["timers"] = [timers.getCommitQueueOffset(), waiting]
        return told | self._served(ranges)

    def _served(self, ranges: Mapping[Queue, list[int]]) -> Told:
        """Return what a consumer of each queue gets from its begin on."""
        rows, stuck, n_messages = self._read(ranges, _WHOLE)
        # Where a page begins decides what a hole hides.
        holes = {
            queue: ends for queue, ends in ranges.items() if n_messages[queue] < ends[1] - ends[0]
        }
        if holes:
            rows_of_holes, stuck, _ = self._read(holes, _PAGE)
            rows = {queue: rows[queue] for queue in rows if queue not in holes} | rows_of_holes
        found: Told = {"served": {}, "garbled": {}, "stuck": _named(stuck)}
        for queue, of_queue in _named(rows).items():
            for row in of_queue:
                part = found["served" if row[2] >= 0 else "garbled"]
                part.setdefault(queue, []).append(row)
        return found

    def _read(
        self, ranges: Mapping[Queue, list[int]], count: int
    ) -> tuple[Rows, dict[Queue, list[Any]], Counter[Queue]]:
        """Return what a consumer gets that begins at 0 and asks for ``count`` messages each time.

        Those are queue offset, physical offset and CRC-32 of each record, -1 for bytes that are
        none; where it gets stuck; and how many messages there are, also within inner batches.
        """
        results, buffers = self._jvm.java.util.ArrayList(), self._jvm.java.util.ArrayList()
        pages: list[Queue] = []
        stuck: dict[Queue, list[Any]] = {}
        for queue, (_, end) in ranges.items():
            at, pages_of = 0, self._pages(queue, count)
            while at < end and queue not in stuck:
                try:
                    page = self._store.getMessage("judge", *queue, at, pages_of(at), None)
                except Py4JJavaError as err:
                    stuck[queue] = [at, _exception(err)]
                    break
                pages.append(queue)
                results.add(page)
                buffers.addAll(page.getMessageBufferList())
                following = page.getNextBeginOffset()
                if following <= at:
                    stuck[queue] = [at, page.getStatus().toString()]
                at = following
        data, at = memoryview(self._jvm.joined(buffers)), 0
        rows: Rows = {}
        n_messages: Counter[Queue] = Counter()
        for queue, page in zip(pages, self._jvm.value(results), strict=True):
            n_messages[queue] += page["messageCount"]
            offsets = page.get("messageQueueOffset") or []  # 4.x does not tell them
            for number, part in enumerate(page["messageMapedList"]):
                record = data[at : at + part["size"]]
                at += part["size"]
                is_record = len(record) >= _HEAD and record[4:8] in _MAGICS
                is_record &= int.from_bytes(record[:4]) == len(record)
                offset = offsets[number] if offsets else int.from_bytes(record[_QUEUE_OFFSET])
                place = int.from_bytes(record[_PHYSICAL_OFFSET])
                crc = zlib.crc32(record) if is_record else -1
                rows.setdefault(queue, []).append([offset, place, crc])
        return rows, stuck, n_messages

    def find(self, topic: str, key: str) -> list[int]:
        """Return where the records are that a look-up of a key finds.

        The index has the hash of the key alone. Source: MQAdminImpl.java#queryMessage.
        """
        try:
            found = self._store.queryMessage(topic, key, _KEYS, 0, (1 << 63) - 1)
        except Py4JJavaError:
            return []
        decoder, places = self._jvm.rocketmq.common.message.MessageDecoder, []
        for buffer in list(found.getMessageBufferList()):
            message = decoder.decode(buffer.slice(), False)
            words = () if message is None else (message.getKeys() or "").split(" ")
            if key in words or (message is not None and message.getProperty("UNIQ_KEY") == key):
                places.append(int(buffer.getLong(28)))
        return sorted(places)

    def put_next(self) -> dict[str, int | None]:
        """Put one message to each queue but those of delays; return the queue offsets given."""
        queues = sorted({*self._ranges(), *self.asked.queues})
        ordinary = [queue for queue in queues if not queue[0].startswith((_LMQ, _DELAYS))]
        results, message = self._jvm.java.util.ArrayList(), self._message({"a": "b"})
        for topic, queue_id in ordinary:
            message.setTopic(topic)
            message.setQueueId(queue_id)
            results.add(self._store.putMessage(message))
        puts = self._jvm.value(results)
        given = {
            queue: (put.get("appendMessageResult") or {}).get("logicsOffset")
            for queue, put in zip(ordinary, puts, strict=True)
        }
        for queue in queues:
            if queue[0].startswith(_LMQ):
                message = self._message({"INNER_MULTI_DISPATCH": queue[0]})
                message.setTopic(_PARENT[0])
                put = self._store.putMessage(message).getAppendMessageResult()
                record = put and self._store.lookMessageByOffset(put.getWroteOffset())
                told = record and record.getProperty("INNER_MULTI_QUEUE_OFFSET")
                given[queue] = int(told) if told else None
        self._wait()
        self.asked = self.asked._replace(queues=(*queues, _PARENT))
        return _named(given)

    def _message(self, properties: Mapping[str, str]) -> Any:
        rocketmq, java = self._jvm.rocketmq, self._jvm.java
        package = rocketmq.common.message if self._jvm.is_5 else rocketmq.store
        message, address = (
            package.MessageExtBrokerInner(),
            java.net.InetSocketAddress("127.0.0.1", 1),
        )
        message.setBody(b"next")
        message.setBornHost(address)
        message.setStoreHost(address)
        for name, value in properties.items():
            rocketmq.common.message.MessageAccessor.putProperty(message, name, value)
        decoder = rocketmq.common.message.MessageDecoder
        message.setPropertiesString(decoder.messageProperties2String(message.getProperties()))
        return message

    def close(self) -> None:
        """Close it as a broker that ends does, and let go of what it left."""
        controller = self._controller
        if self._is_started:
            if controller is not None and self._has_timers:
                controller.getTimerMessageStore().shutdown()
            shut_down(self._jvm.java, self._store)
        if controller is not None:
            tables = (
                controller.getTopicConfigManager(), controller.getSubscriptionGroupManager(),
                controller.getConsumerOffsetManager(), controller.getConsumerOrderInfoManager(),
                controller.getConsumerFilterManager(), controller.getScheduleMessageService(),
            )  # fmt: skip
            for table in tables:
                if self._is_started:
                    table.persist()
                table.stop()
            field_of(controller, "consumerIdsChangeListener").shutdown()
        if self._stats is not None:
            self._stats.shutdown()
            if self._jvm.is_5:
                field_of(field_of(self._stats, "accountStatManager"), "executor").shutdown()


def _exception(err: Py4JJavaError) -> str:
    return str(err.java_exception.getClass().getSimpleName())


def _named(of_queues: Mapping[Queue, Any]) -> Told:
    return {f"{topic}-{queue_id}": value for (topic, queue_id), value in of_queues.items()}


def _files(root: Path) -> dict[str, int]:
    """Return the sizes of the files of the log, the queues, the index and the tiers."""
    return {
        path.relative_to(root).as_posix(): path.lstat().st_size
        for folder in root.iterdir()
        if folder.name.startswith(_FOLDERS)
        for path in folder.rglob("*")
        if not path.is_dir()
        if not path.name.startswith(_OF_ROCKSDB) and path.suffix not in (".sst", ".log")
    }


def _changed(before: Mapping[str, int], after: Mapping[str, int]) -> Told:
    """Return what befell each file: "deleted", "made", or its two sizes."""
    gone = dict.fromkeys(before.keys() - after.keys(), "deleted")
    made = dict.fromkeys(after.keys() - before.keys(), "made")
    both = {path: [before[path], after[path]] for path in before.keys() & after.keys()}
    return gone | made | {path: sizes for path, sizes in both.items() if len({*sizes}) == 2}
