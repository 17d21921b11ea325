"""The original as judge: what a real broker makes of a store, as a plain value.

One JVM for each version stays up. It opens a store in place as a starting broker does, serves what
a consumer would get, takes one message more for each queue, is closed cleanly, and opens the store
again. The services that act later are not started: nothing is delivered, expired or compacted.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict

from py4j.protocol import Py4JError, Py4JJavaError

from interop.rocketmq import JAVA_OPTIONS, resolve_jars, start_jvm
from ports import free_ports

JARS = Path(__file__).parents[2] / ".rocketmq"
LIMIT = 20  # seconds for a store
_STORES_A_JVM = 200
_STORES_A_COLLECTION = 5
_OPTIONS = ["-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"]
_OUT_OF_MEMORY = 3  # the exit code of the second one
_WITH_BROKER = ("5.3.3",)  # of the other versions only the store was published
_WHOLE, _PAGE = 1 << 20, 32  # messages to ask for at once: all of them, and what a consumer does
_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
_HEAD, _QUEUE_OFFSET = 36, slice(20, 28)  # of a record
_KEYS = 64  # records that a look-up returns at most
_LMQ, _TIMERS = "%LMQ%", "rmq_sys_wheel_timer"
_QUICKLY: dict[str, Any] = {  # changes neither an answer nor what is on disk after a clean end
    "brokerName": "interop", "haListenPort": 0, "longPollingEnable": False,
    "flushCommitLogTimed": False,
    **{f"maxTransfer{what}OnMessageIn{where}": 1 << 30
       for what in ("Bytes", "Count") for where in ("Memory", "Disk")},
}  # fmt: skip
_SHOWN = {  # what is asked of an object of a class when it becomes JSON
    "GetMessageResult": ["messageQueueOffset", "messageMapedList", "messageCount"],
    "SelectMappedBufferResult": ["startOffset", "size"],
    "PutMessageResult": ["appendMessageResult"],
    "AppendMessageResult": ["logicsOffset", "wroteOffset"],
}
_OF_QUEUE = ["topic", "queueId", "minOffsetInQueue", "maxOffsetInQueue"]
_FOLDERS = ("commitlog", "consumequeue", "batchconsumequeue", "index", "dledger-", "tieredstore")

State = dict[str, Any]  # log, queues, served, garbled, stuck, groups and delayed of an Answer


class Asked(NamedTuple):
    """What is asked besides: keys to look up, queues that a store in RocksDB need not list."""

    keys: tuple[tuple[str, str], ...] = ()
    queues: tuple[tuple[str, int], ...] = ()
    again: bool = True


class Answer(TypedDict, total=False):
    """What the original makes of a store; after a refusal there is nothing else."""

    starts: bool
    refusal: str  # "tables", "store", "timers", "delays"; "start: …"; "exits", "hangs", "memory"
    log: list[int]
    queues: dict[str, list[int]]
    served: dict[str, list[list[int]]]
    garbled: dict[str, list[int]]  # offsets at which it serves bytes that are no record
    stuck: dict[str, list[Any]]  # the offset that a consumer does not get beyond, and why
    keys: dict[str, list[int]]
    groups: dict[str, int]
    delayed: dict[str, Any]  # levels, and of timers what is not in the wheel yet, and what is
    files: dict[str, Any]
    next: dict[str, int | None]
    again: Answer | None


class RefusedError(Exception):
    """The store does not load or start; the text says what refuses."""


class Original:
    """The JVM of a version, as a context manager; if it ends, the next store gets another one.

    A store must not be given from two threads at once.
    """

    def __init__(self, home: Path, version: str = "5.3.3") -> None:
        self._version, self._home, self._jars = version, home, resolve_jars(version, JARS)
        self._jvm: _Jvm | None = None

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
            self._jvm = _Jvm(self._version, self._jars, self._home)
        jvm, answer = self._jvm, Answer(starts=False, refusal="")
        too_long = threading.Timer(LIMIT, jvm.process.kill)
        too_long.start()
        try:
            _ask(jvm, root, settings, asked or Asked(), answer)
        except (Py4JError, OSError) as err:
            self._jvm = None
            jvm.forget()
            try:
                code = jvm.process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                jvm.process.kill()
                raise err from None
            died = "memory" if code == _OUT_OF_MEMORY else "exits"
            refused = Answer(starts=False, refusal="hangs" if code < 0 else died)
            answer.update({"again": refused} if "next" in answer else refused)
        finally:
            too_long.cancel()
        return answer

    def _end(self) -> None:
        if self._jvm is not None:
            self._jvm.forget()
            self._jvm.process.stdin.close()
            self._jvm.process.wait(timeout=30)
            self._jvm = None


def _ask(jvm: _Jvm, root: Path, settings: Mapping[str, Any], asked: Asked, answer: Answer) -> None:
    """Fill the answer step by step, so that it has what is known before a JVM dies."""
    before = _files(root)
    opened = _Opened(jvm, root, settings, asked)
    try:
        opened.start()
        answer.update(opened.state(), starts=True, files=_changed(before, _files(root)))
        answer["keys"] = {f"{topic} {key}": opened.find(topic, key) for topic, key in asked.keys}
        answer["next"] = opened.put_next()
        answer["again"] = None
        first = opened.state()
    except RefusedError as err:
        answer["refusal"] = str(err)
        return
    finally:
        opened.close()
    if asked.again:
        again = Answer(starts=False, refusal="")
        opened = _Opened(jvm, root, settings, asked)
        try:
            opened.start()
            again.update(opened.state(), starts=True)
        except RefusedError as err:
            again["refusal"] = str(err)
        finally:
            opened.close()
        if again != {"starts": True, "refusal": "", **first}:
            answer["again"] = again


def _files(root: Path) -> dict[str, int]:
    """Return the sizes of the files of the log, the queues, the index and the tiers."""
    return {
        path.relative_to(root).as_posix(): path.lstat().st_size
        for folder in root.iterdir()
        if folder.name.startswith(_FOLDERS)
        for path in folder.rglob("*")
        if not path.is_dir()
    }


def _changed(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, Any]:
    gone = dict.fromkeys(before.keys() - after.keys(), "deleted")
    made = dict.fromkeys(after.keys() - before.keys(), "made")
    both = {path: [size, after[path]] for path, size in before.items() if path in after}
    return gone | made | {path: sizes for path, sizes in both.items() if len(set(sizes)) == 2}


class _Jvm:
    """A running JVM, and how much is asked of it by few calls."""

    def __init__(self, version: str, jars: Path, home: Path) -> None:
        self.has_broker, self.has_topics = version in _WITH_BROKER, version >= "5"
        self.stores = 0
        self._log = (home / "jvm.log").open("a")
        options = [*JAVA_OPTIONS, *_OPTIONS]
        self._gateway, self.process = start_jvm(jars, home, self._log, options)
        jvm = self._gateway.jvm
        self.rocketmq, self.java, self._netty = jvm.org.apache.rocketmq, jvm.java, jvm.io.netty
        is_newer, alibaba = version >= "5.4", jvm.com.alibaba
        if is_newer:
            self._json, feature = alibaba.fastjson2.JSON, alibaba.fastjson2.JSONWriter.Feature
            filters, kind = alibaba.fastjson2.filter, alibaba.fastjson2.filter.Filter
        else:
            self._json, filters = alibaba.fastjson.JSON, alibaba.fastjson.serializer
            kind, feature = filters.SerializeFilter, filters.SerializerFeature
        queue = "queue.ConsumeQueueInterface" if self.has_topics else "ConsumeQueue"
        shown = [
            filters.SimplePropertyPreFilter(
                self.java.lang.Class.forName(f"org.apache.rocketmq.store.{name}"),
                self.array(self.java.lang.String, names),
            )
            for name, names in {**_SHOWN, queue: _OF_QUEUE}.items()
        ]
        self._options = (
            self.array(kind, shown),
            self.array(feature, [feature.WriteNonStringKeyAsString]),
        )

    def forget(self) -> None:
        """Close what leads into the JVM."""
        self._gateway.shutdown()
        self._log.close()

    def array(self, kind: Any, items: list[Any]) -> Any:
        found = self._gateway.new_array(kind, len(items))
        for number, item in enumerate(items):
            found[number] = item
        return found

    def value(self, of_java: Any) -> Any:
        """Return a Java object as JSON has it."""
        return json.loads(self._json.toJSONString(of_java, *self._options))

    def joined(self, buffers: Any) -> bytes:
        """Return the bytes of a java.util.List of ByteBuffer."""
        kind = self.java.lang.Class.forName("[Ljava.nio.ByteBuffer;")
        parts = self.java.util.Arrays.copyOf(buffers.toArray(), buffers.size(), kind)
        buffer = self._netty.buffer
        return bytes(buffer.ByteBufUtil.getBytes(buffer.Unpooled.wrappedBuffer(parts)))

    def properties(self, settings: Mapping[str, Any]) -> Any:
        found = self.java.util.Properties()
        for name, value in settings.items():
            found.setProperty(name, str(value).lower() if isinstance(value, bool) else str(value))
        return found

    def configured(self, config: Any, properties: Any) -> Any:
        """Return an object of RocketMQ's with those of the properties that it has."""
        self.rocketmq.common.MixAll.properties2Object(properties, config)
        return config

    def shut_down(self, store: Any) -> None:
        """Shut a store down, but for the three seconds that it only waits."""
        lang = self.java.lang
        run = self.java.beans.EventHandler.create(
            lang.Class.forName("java.lang.Runnable"), store, "shutdown"
        )
        thread = lang.Thread(run)
        thread.start()
        while thread.isAlive():
            inner, *outer = [frame.toString() for frame in thread.getStackTrace()[:2]] or [""]
            if "Thread.sleep" in inner and "MessageStore.shutdown" in str(outer):
                thread.interrupt()
            thread.join(10)


class _Opened:
    """A store that is opened as a broker opens it, where there is one, or else by itself."""

    def __init__(self, jvm: _Jvm, root: Path, settings: Mapping[str, Any], asked: Asked) -> None:
        self._jvm, self._root, self._asked = jvm, root, asked
        self._settings = {**_QUICKLY, **settings, "storePathRootDir": root}
        for name, value in settings.items():
            if name.startswith(("storePath", "tieredStoreFilePath")):
                self._settings[name] = ",".join(str(root / one) for one in str(value).split(","))
        if peers := settings.get("dLegerPeers"):
            host = str(peers).rpartition(":")[0]
            self._settings["dLegerPeers"] = f"{host}:{free_ports(1)[0]}"
        tiers = {name: value for name, value in settings.items() if name.startswith("tiered")}
        if tiers:
            tiers.setdefault("tieredStoreFilePath", root / "tieredstore")
            plug_in = "org.apache.rocketmq.tieredstore.TieredMessageStore"
            self._settings.update(tiers, messageStorePlugIn=plug_in)
        has_timers = any(
            (root / name).exists() for name in ("timerwheel", "timerlog", f"consumequeue/{_TIMERS}")
        )
        self._settings.setdefault("timerWheelEnable", has_timers)
        self._has_timers = self._settings["timerWheelEnable"] in (True, "true")
        self._controller = self._store = self._stats = None
        self._is_started = False

    def start(self) -> None:
        """Load and start it as a broker does; raise RefusedError if it does not."""
        properties = self._jvm.properties(self._settings)
        rocketmq = self._jvm.rocketmq
        config = self._jvm.configured(rocketmq.store.config.MessageStoreConfig(), properties)
        broker = self._jvm.configured(rocketmq.common.BrokerConfig(), properties)
        try:
            if self._jvm.has_broker:
                self._load_broker(broker, config, properties)
            else:
                self._load_store(broker, config)
            self._store.start()
            self._is_started = True
            if self._settings.get("enableDLegerCommitLog") in (True, "true"):
                self._wait_for_leader()
            self._wait()
        except Py4JJavaError as err:
            cause = err.java_exception
            raise RefusedError(
                f"start: {cause.getClass().getSimpleName()}: {cause.getMessage()}"
            ) from None

    def _load_broker(self, broker: Any, config: Any, properties: Any) -> None:
        """Do what BrokerController.initialize does with what is in the store."""
        server = self._jvm.rocketmq.remoting.netty.NettyServerConfig()
        controller = self._jvm.rocketmq.broker.BrokerController(broker, server, None, config)
        self._controller, self._stats = controller, controller.getBrokerStatsManager()
        controller.getConfiguration().registerConfig(properties)
        _require(controller.initializeMetadata(), "tables")
        _require(controller.initializeMessageStore(), "store")
        self._store = controller.getMessageStore()
        if self._settings.get("enableDLegerCommitLog") in (True, "true"):
            # a leader would begin to deliver
            elector = self._store.getCommitLog().getdLedgerServer().getDLedgerLeaderElector()
            handlers = _field(elector, "roleChangeHandlers")
            handlers.removeAll(handlers)
        _require(self._store.load(), "store")
        if self._has_timers:
            _require(controller.getTimerMessageStore().load(), "timers")
        _require(controller.getScheduleMessageService().load(), "delays")

    def _load_store(self, broker: Any, config: Any) -> None:
        rocketmq, java = self._jvm.rocketmq, self._jvm.java
        self._stats = rocketmq.store.stats.BrokerStatsManager("interop", False)
        arguments = [config, self._stats, None, broker]
        if self._jvm.has_topics:
            topics = java.util.concurrent.ConcurrentHashMap()
            for name, attributes in _topics(self._root).items():
                topic = rocketmq.common.TopicConfig(name)
                topic.setAttributes(attributes)
                topics.put(name, topic)
            arguments.append(topics)
        is_rocksdb = self._settings.get("storeType") == "defaultRocksDB"
        kind = "RocksDBMessageStore" if is_rocksdb else "DefaultMessageStore"
        self._store = getattr(rocketmq.store, kind)(*arguments)
        _require(self._store.load(), "store")

    def _wait(self) -> None:
        """Wait until queues and index are built as far as the log goes."""
        while self._store.dispatchBehindBytes() > 0:
            time.sleep(0.005)

    def _wait_for_leader(self) -> None:
        server = self._store.getCommitLog().getdLedgerServer()
        entries = server.getDLedgerStore()
        while not server.getMemberState().isLeader() or (
            entries.getLedgerEndIndex() != entries.getCommittedIndex()
        ):
            time.sleep(0.01)
        self._wait()
        self._store.recoverTopicQueueTable()

    def state(self) -> State:
        """Return what it has and serves now."""
        for topic, queue_id in self._asked.queues:
            self._store.getMaxOffsetInQueue(topic, queue_id)
        queues = {
            (of_queue["topic"], of_queue["queueId"]): of_queue
            for of_topic in self._jvm.value(self._queues()).values()
            for of_queue in of_topic.values()
        }
        ranges = {
            queue: [queues[queue]["minOffsetInQueue"], queues[queue]["maxOffsetInQueue"]]
            for queue in sorted(queues)
        }
        found: State = {
            "log": [self._store.getMinPhyOffset(), self._store.getMaxPhyOffset()],
            "queues": _named(ranges), "groups": {}, "delayed": {}, **self._messages(ranges),
        }  # fmt: skip
        if self._controller is not None:
            manager = self._controller.getConsumerOffsetManager()
            found["groups"] = {
                f"{group} {topic}-{queue_id}": offset
                for name, of_group in self._jvm.value(manager.getOffsetTable()).items()
                for topic, _, group in [name.partition("@")]
                for queue_id, offset in of_group.items()
            }
            schedule = self._controller.getScheduleMessageService()
            found["delayed"] = self._jvm.value(schedule.getOffsetTable())
            if self._has_timers:
                timers = self._controller.getTimerMessageStore()
                num = timers.getTimerWheel().getAllNum(timers.getCurrReadTimeMs())
                found["delayed"]["timers"] = [timers.getCommitQueueOffset(), num]
        return found

    def _queues(self) -> Any:
        return self._store.getQueueStore().getConsumeQueueTable()

    def _messages(self, ranges: Mapping[tuple[str, int], list[int]]) -> State:
        """Return what a consumer of each queue gets from its begin on."""
        pages = _Pages(self._jvm, self._store)
        for queue, (_, stop) in ranges.items():
            pages.read(queue, stop, _WHOLE)
        served, counts = pages.served()
        stuck = pages.stuck
        # A hole hides more or less, according to where a page begins.
        holes = [queue for queue, (start, stop) in ranges.items() if counts[queue] < stop - start]
        if holes:
            pages = _Pages(self._jvm, self._store)
            for queue in holes:
                stuck.pop(queue, None)
                pages.read(queue, ranges[queue][1], _PAGE)
            served |= pages.served()[0]
            stuck |= pages.stuck
        garbled = {queue: [row[0] for row in rows if row[2] < 0] for queue, rows in served.items()}
        sound = {queue: [row for row in rows if row[2] >= 0] for queue, rows in served.items()}
        return {
            "served": _named(sound), "stuck": _named(stuck),
            "garbled": _named({queue: offsets for queue, offsets in garbled.items() if offsets}),
        }  # fmt: skip

    def find(self, topic: str, key: str) -> list[int]:
        """Return where the records are that a look-up of a key finds."""
        try:
            found = self._store.queryMessage(topic, key, _KEYS, 0, (1 << 63) - 1)
        except Py4JJavaError:
            return []
        return sorted(int(buffer.getLong(28)) for buffer in list(found.getMessageBufferList()))

    def put_next(self) -> dict[str, int | None]:
        """Put one message to each queue; return the queue offsets that these get."""
        queues = [
            (of_queue["topic"], of_queue["queueId"])
            for of_topic in self._jvm.value(self._queues()).values()
            for of_queue in of_topic.values()
        ]
        results, given = self._jvm.java.util.ArrayList(), {}
        ordinary = sorted(queue for queue in queues if not queue[0].startswith(_LMQ))
        message = self._message()
        for topic, queue_id in ordinary:
            message.setTopic(topic)
            message.setQueueId(queue_id)
            results.add(self._store.putMessage(message))
        for queue, result in zip(ordinary, self._jvm.value(results), strict=True):
            given[queue] = (result.get("appendMessageResult") or {}).get("logicsOffset")
        for topic, queue_id in sorted(set(queues) - set(ordinary)):
            parent = self._message({"INNER_MULTI_DISPATCH": topic})
            parent.setTopic("Parent")
            result = self._store.putMessage(parent).getAppendMessageResult()
            record = result and self._store.lookMessageByOffset(result.getWroteOffset())
            told = record and record.getProperty("INNER_MULTI_QUEUE_OFFSET")
            given[topic, queue_id] = int(told) if told else None
        self._wait()
        return _named(given)

    def _message(self, properties: Mapping[str, str] | None = None) -> Any:
        rocketmq, has_topics = self._jvm.rocketmq, self._jvm.has_topics
        package = rocketmq.common.message if has_topics else rocketmq.store
        address = self._jvm.java.net.InetSocketAddress("127.0.0.1", 10911)
        message = package.MessageExtBrokerInner()
        message.setBody(b"next")
        message.setBornHost(address)
        message.setStoreHost(address)
        decoder, accessor = (
            rocketmq.common.message.MessageDecoder,
            rocketmq.common.message.MessageAccessor,
        )
        for name, value in (properties or {"a": "b"}).items():
            accessor.putProperty(message, name, value)
        message.setPropertiesString(decoder.messageProperties2String(message.getProperties()))
        return message

    def close(self) -> None:
        """Close it as a broker that ends does, and let go of what it left."""
        jvm, controller = self._jvm, self._controller
        if self._is_started and controller is not None and self._has_timers:
            controller.getTimerMessageStore().shutdown()
        if self._is_started:
            jvm.shut_down(self._store)
        if controller is not None:
            if self._is_started:
                controller.getConsumerFilterManager().persist()
                controller.getScheduleMessageService().persist()
                controller.getConsumerOrderInfoManager().persist()
            for manager in (
                controller.getTopicConfigManager(),
                controller.getSubscriptionGroupManager(),
                controller.getConsumerOffsetManager(),
            ):
                if self._is_started:
                    manager.persist()
                manager.stop()
            _field(controller, "consumerIdsChangeListener").shutdown()
        if self._stats is not None:
            self._stats.shutdown()
            _field(_field(self._stats, "accountStatManager"), "executor").shutdown()


class _Pages:
    """Messages of queues that are taken from a store, page by page, and told all at once."""

    def __init__(self, jvm: _Jvm, store: Any) -> None:
        self._jvm, self._store = jvm, store
        self._results, self._buffers = jvm.java.util.ArrayList(), jvm.java.util.ArrayList()
        self._queues: list[tuple[str, int]] = []  # of each page
        self.stuck: dict[tuple[str, int], list[Any]] = {}

    def read(self, queue: tuple[str, int], stop: int, count: int) -> None:
        """Take what a consumer gets that begins at 0 and asks for ``count`` messages each time."""
        at = 0
        while at < stop:
            try:
                found = self._store.getMessage("judge", *queue, at, count, None)
            except Py4JJavaError as err:
                self.stuck[queue] = [at, err.java_exception.getClass().getSimpleName()]
                return
            self._results.add(found)
            self._buffers.addAll(found.getMessageBufferList())
            self._queues.append(queue)
            following = found.getNextBeginOffset()
            if following <= at:
                self.stuck[queue] = [at, found.getStatus().toString()]
                return
            at = following

    def served(self) -> tuple[dict[tuple[str, int], list[list[int]]], Counter[tuple[str, int]]]:
        """Return queue offset, physical offset and CRC-32 of each record; -1 for what is none.

        And how many messages a queue gave, of which an inner batch has more than one.
        """
        joined, place = memoryview(self._jvm.joined(self._buffers)), 0
        rows: dict[tuple[str, int], list[list[int]]] = {}
        counts: Counter[tuple[str, int]] = Counter()
        for queue, page in zip(self._queues, self._jvm.value(self._results), strict=True):
            counts[queue] += page["messageCount"]
            offsets = page.get("messageQueueOffset") or []
            for number, part in enumerate(page["messageMapedList"]):
                record = joined[place : place + part["size"]]
                place += part["size"]
                is_record = len(record) >= _HEAD and record[4:8] in _MAGICS
                told = offsets[number] if offsets else int.from_bytes(record[_QUEUE_OFFSET])
                crc = zlib.crc32(record) if is_record else -1
                rows.setdefault(queue, []).append([told, part["startOffset"], crc])
        return rows, counts


def _require(is_so: bool, part: str) -> None:
    if not is_so:
        raise RefusedError(part)


def _named(queues: Mapping[tuple[str, int], Any]) -> dict[str, Any]:
    return {f"{topic}-{queue_id}": value for (topic, queue_id), value in queues.items()}


def _topics(root: Path) -> dict[str, dict[str, str]]:
    """Return the attributes of the topics of a store, where no broker reads its tables."""
    try:
        table = json.loads((root / "config/topics.json").read_text(encoding="utf-8"))
        return {
            name: {key.lstrip("+"): value for key, value in topic.get("attributes", {}).items()}
            for name, topic in table["topicConfigTable"].items()
        }
    except (OSError, ValueError, KeyError, AttributeError):
        return {}


def _field(owner: Any, name: str) -> Any:
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)
