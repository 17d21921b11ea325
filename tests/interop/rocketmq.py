"""The real RocketMQ, driven from Python: its classes by py4j.

It ends only processes that it started itself.
"""

from __future__ import annotations

import base64
import json
import signal
import struct
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from py4j.java_gateway import CallbackServerParameters

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from rocketmq_jvm import JAVA_OPTIONS, JarsUnavailableError, resolve_jars, start_jvm

__all__ = ["JAVA_OPTIONS", "JarsUnavailableError", "resolve_jars"]

PAGE = 32  # messages that one call asks for
_DELETE_TRIES, _DELETE_SECONDS = 20, 0.05
# told of offsets before the first that a queue still has
EXPIRED = {"OFFSET_FOUND_NULL", "MESSAGE_WAS_REMOVING"}
Message = dict[str, Any]


def store_sizes(log: int, queues: int, slots: int, items: int, **others: Any) -> dict[str, Any]:
    """Return settings of a store: the sizes of its files, and slots and items of its index."""
    return {
        "mappedFileSizeCommitLog": log, "mappedFileSizeConsumeQueue": queues,
        "maxHashSlotNum": slots, "maxIndexNum": items, **others,
    }  # fmt: skip


def _each(listed: Any) -> Iterator[Any]:
    """Yield the items of a java.util.List.

    An iterator of Java ends with an error, about which pyspark, once it is loaded, asks the JVM of
    Spark a dozen questions.
    """
    for number in range(listed.size()):
        yield listed.get(number)


class RocketMQ:
    """A JVM with one version of RocketMQ in it."""

    def __init__(self, version: str, jars: Path, home: Path) -> None:
        self.version = version
        # a thread of py4j's writes to it until the JVM ends
        self._log = (home / "jvm.log").open("a")
        self._gateway, self._process = start_jvm(jars, home, self._log)
        self.rocketmq = self._gateway.jvm.org.apache.rocketmq
        self.java = self._gateway.jvm.java

    def close(self) -> None:
        self._gateway.shutdown()
        self._process.stdin.close()
        self._process.wait(timeout=30)

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End the JVM as a power cut would."""
        self._process.kill()
        self._process.wait(timeout=30)

    def open(
        self,
        root: Path,
        batch_topics: Collection[str] = (),
        *,
        compacted_topics: Collection[str] = (),
        is_controlled: bool = False,
        **sizes: Any,
    ) -> RealStore:
        """Load and start the store at ``root``; ``sizes`` are fields of MessageStoreConfig.

        The queues of ``batch_topics`` are BatchConsumeQueues, those of ``compacted_topics`` are
        compacted; ``is_controlled`` is controller mode.
        """
        attributes = {
            **{topic: {"queue.type": "BatchCQ"} for topic in batch_topics},
            **{topic: {"cleanup.policy": "COMPACTION"} for topic in compacted_topics},
        }
        return RealStore(self, root, sizes, attributes, is_controlled=is_controlled)

    def store_config(self, root: Path, **sizes: Any) -> Any:
        config = self.rocketmq.store.config.MessageStoreConfig()
        config.setStorePathRootDir(str(root))
        config.setStorePathCommitLog(str(root / "commitlog"))
        for name, value in sizes.items():
            setter = f"set{name[0].upper()}{name[1:]}"
            if self.version < "4.5":  # spelled so in these releases
                setter = setter.replace("Mapped", "Maped")
            getattr(config, setter)(value)
        return config

    def server_config(self, port: int) -> Any:
        config = self.rocketmq.remoting.netty.NettyServerConfig()
        config.setListenPort(port)
        return config

    def start_name_server(self, port: int) -> Any:
        config = self.rocketmq.common.namesrv.NamesrvConfig()
        server = self.rocketmq.namesrv.NamesrvController(config, self.server_config(port))
        assert server.initialize(), "the name server does not initialize"
        server.start()
        return server

    def start_broker(self, config: Any, port: int, store_config: Any) -> Any:
        config.setBrokerIP1("127.0.0.1")
        config.setListenPort(port)
        client_config = self.rocketmq.remoting.netty.NettyClientConfig()
        controller = self.rocketmq.broker.BrokerController(
            config, self.server_config(port), client_config, store_config
        )
        root = store_config.getStorePathRootDir()
        assert controller.initialize(), f"the real broker does not initialize over {root}"
        controller.start()
        return controller

    def inner_class(self) -> Any:
        package = self.rocketmq.common.message if self.version >= "5" else self.rocketmq.store
        return package.MessageExtBrokerInner

    def flush_options(self) -> Any:
        return self._gateway.jvm.org.rocksdb.FlushOptions().setWaitForFlush(True)

    @contextmanager
    def callbacks(self) -> Iterator[None]:
        """Let Java call methods of Python objects."""
        parameters = CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True)
        self._gateway.start_callback_server(parameters)
        server = self._gateway.java_gateway_server
        port = self._gateway.get_callback_server().get_listening_port()
        server.resetCallbackClient(server.getCallbackClient().getAddress(), port)
        try:
            yield
        finally:
            self._gateway.shutdown_callback_server()

    def classes(self, *kinds: Any) -> Any:
        """Return a Class[] of these, as reflection takes it."""
        found = self._gateway.new_array(self.java.lang.Class, len(kinds))
        for number, kind in enumerate(kinds):
            found[number] = kind
        return found

    def json_class(self) -> Any:
        alibaba = self._gateway.jvm.com.alibaba
        return alibaba.fastjson2.JSON if self.version >= "5.3" else alibaba.fastjson.JSON

    def spell_messages(self, messages: Any) -> list[Message]:
        """Return a java.util.List of MessageExt as dicts of the names and values of the getters."""
        loopback = self.java.net.InetSocketAddress("127.0.0.1", 1)
        hosts = []
        for message in _each(messages):
            hosts.append(message.getBornHost().toString().lstrip("/"))
            for forget in (message.setBornHost, message.setStoreHost):
                forget(loopback)  # as JSON others would be looked up in the DNS
        as_json = json.loads(self.json_class().toJSONString(messages))
        return [
            message | {"body": _bytes(message.get("body")), "bornHost": host}
            for message, host in zip(as_json, hosts, strict=True)
        ]


class RealStore:
    """A DefaultMessageStore, as a context manager that shuts it down as a stopping broker does."""

    def __init__(
        self,
        real: RocketMQ,
        root: Path,
        sizes: dict[str, Any],
        attributes: Mapping[str, dict[str, str]] | None = None,
        *,
        is_controlled: bool = False,
    ) -> None:
        self._real, self.root = real, root
        rocketmq, java = real.rocketmq, real.java
        config = real.store_config(root, **{"haListenPort": 0, **sizes})
        broker = rocketmq.common.BrokerConfig()
        broker.setBrokerName("interop")
        broker.setLongPollingEnable(False)
        if is_controlled:
            broker.setEnableControllerMode(True)
        arguments = [config, self._stats(), None, broker]
        if real.version >= "5":
            topics = java.util.concurrent.ConcurrentHashMap()
            for topic, of_topic in (attributes or {}).items():
                entry = rocketmq.common.TopicConfig(topic)
                entry.setAttributes(of_topic)
                topics.put(topic, entry)
            arguments.append(topics)
        in_rocksdb = sizes.get("storeType") == "defaultRocksDB"
        kind = "RocksDBMessageStore" if in_rocksdb else "DefaultMessageStore"
        self._default = getattr(rocketmq.store, kind)(*arguments)
        self.store = self._wrapped(self._default, arguments)
        assert self._load(), f"the real {real.version} store does not load {root}"
        self.store.start()

    def _load(self) -> bool:
        """Load the store, and whatever a broker loads with it."""
        return bool(self.store.load())

    def _wrapped(self, store: Any, _arguments: list[Any]) -> Any:
        """Return what stands before the store, made with the arguments that it was made with."""
        return store

    def _stats(self) -> Any:
        manager = self._real.rocketmq.store.stats.BrokerStatsManager
        return manager("interop", False) if self._real.version >= "4.9" else manager("interop")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.shutdown()

    @property
    def commitlog(self) -> Any:
        return self.store.getCommitLog()

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: dict[str, str] | None = None,
        born_timestamp: int = 1_700_000_000_000,
    ) -> Any:
        """Put one message; return the PutMessageResult's AppendMessageResult."""
        rocketmq = self._real.rocketmq
        address = self._real.java.net.InetSocketAddress("127.0.0.1", 10911)
        inner_class = self._real.inner_class()
        inner = inner_class()
        inner.setTopic(topic)
        inner.setQueueId(queue_id)
        inner.setBody(body)
        inner.setBornTimestamp(born_timestamp)
        inner.setBornHost(address)
        inner.setStoreHost(address)
        accessor = rocketmq.common.message.MessageAccessor
        for name, value in (properties or {}).items():
            accessor.putProperty(inner, name, value)
        if tags is not None:
            inner.setTags(tags)
            inner.setTagsCode(
                inner_class.tagsString2tagsCode(rocketmq.common.TopicFilterType.SINGLE_TAG, tags)
            )
        if keys is not None:
            inner.setKeys(keys)
        decoder = rocketmq.common.message.MessageDecoder
        inner.setPropertiesString(decoder.messageProperties2String(inner.getProperties()))
        result = self.store.putMessage(inner)
        assert result.getPutMessageStatus().toString() == "PUT_OK", result.toString()
        return result.getAppendMessageResult()

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        bodies: list[bytes],
        properties: bytes,
        of_batch: dict[str, str],
    ) -> None:
        """Put a batch of a client, whose messages all have these properties, as stored.

        Args:
            of_batch: the properties of the batch, which are added to those of each message.
        """
        message = self._real.rocketmq.common.message
        batch = message.MessageExtBatch()
        encoded = b""
        for body in bodies:
            rest = struct.pack(">ii", 0, len(body)) + body
            rest += struct.pack(">h", len(properties)) + properties
            head = struct.pack(">iii", 12 + len(rest), 0, 0)
            encoded += head + rest
        batch.setTopic(topic)
        batch.setQueueId(queue_id)
        batch.setBody(encoded)
        for name, value in of_batch.items():
            message.MessageAccessor.putProperty(batch, name, value)
        batch.setBornTimestamp(1_700_000_000_000)
        address = self._real.java.net.InetSocketAddress("127.0.0.1", 10911)
        batch.setBornHost(address)
        batch.setStoreHost(address)
        result = self.store.putMessages(batch)
        assert result.getPutMessageStatus().toString() == "PUT_OK", result.toString()

    def wait(self, seconds: float = 30) -> None:
        """Wait until the queues and the index are built as far as the log goes."""
        milliseconds = int(seconds * 1000)
        waited = self._real.java.lang.System.currentTimeMillis() + milliseconds
        while self.store.dispatchBehindBytes() > 0:
            assert self._real.java.lang.System.currentTimeMillis() < waited, (
                "the real store does not dispatch"
            )
            self._real.java.lang.Thread.sleep(5)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self.store.getMinOffsetInQueue(topic, queue_id), self.store.getMaxOffsetInQueue(
            topic, queue_id
        )

    def messages(self, topic: str, queue_id: int) -> Iterator[Message]:
        """Yield the messages that the real store serves of a queue, by its own decoder."""
        at, end = self.queue_range(topic, queue_id)
        while at < end:
            found = self.store.getMessage("interop", topic, queue_id, at, PAGE, None)
            status, buffers = found.getStatus().toString(), found.getMessageBufferList()
            assert status == "FOUND", f"{topic}-{queue_id} at {at}: {status}"
            decoded = self._real.java.util.ArrayList()
            for buffer in _each(buffers):
                decoded.add(self._real.rocketmq.common.message.MessageDecoder.decode(buffer))
            at = found.getNextBeginOffset()
            found.release()
            yield from self._real.spell_messages(decoded)

    def records(self, topic: str, queue_id: int) -> Iterator[tuple[int, bytes]]:
        """Yield the records that the real store serves of a queue, with requested offsets."""
        at, end = self.queue_range(topic, queue_id)
        has_begun = False
        while at < end:
            found = self.store.getMessage("interop", topic, queue_id, at, PAGE, None)
            status, following = found.getStatus().toString(), found.getNextBeginOffset()
            if not has_begun and status in EXPIRED and following > at:
                at = following
                continue
            has_begun = True
            assert status == "FOUND", f"{topic}-{queue_id} at {at}: {status}"
            offsets = _each(found.getMessageQueueOffset())
            yield from zip(offsets, self._records_in(found), strict=True)
            at = following
            found.release()

    def stored(self, topic: str, queue_id: int) -> Iterator[bytes]:
        """Yield the records that the real store serves of a queue, of any release."""
        at, end = self.queue_range(topic, queue_id)
        while at < end:
            found = self.store.getMessage("interop", topic, queue_id, at, PAGE, None)
            assert found.getStatus().toString() == "FOUND"
            yield from self._records_in(found)
            at = found.getNextBeginOffset()
            found.release()

    def _records_in(self, found: Any) -> Iterator[bytes]:
        joined = self._real.java.nio.ByteBuffer.allocate(found.getBufferTotalSize())
        for buffer in _each(found.getMessageBufferList()):
            joined.put(buffer)
        data, place = bytes(joined.array()), 0
        while place < len(data):
            size = int.from_bytes(data[place : place + 4])
            yield data[place : place + size]
            place += size

    def query(self, topic: str, key: str, count: int = 64) -> list[int]:
        return self._offsets(self.store.queryMessage(topic, key, count, 0, (1 << 63) - 1))

    def query_tags(self, topic: str, tags: str, count: int = 64) -> list[int]:
        """Return the physical offsets that the real store's index finds for tags, from 5.4 on."""
        times = 0, (1 << 63) - 1
        return self._offsets(self.store.queryMessage(topic, tags, count, *times, "T", None))

    def _offsets(self, found: Any) -> list[int]:
        # Where MessageDecoder reads it; to decode whole messages takes most of a minute a store.
        offsets = [int(buffer.getLong(28)) for buffer in found.getMessageBufferList()]
        found.release()
        return offsets

    def index_files(self) -> list[str]:
        """Return the paths of its index files; two of the same millisecond share one path."""
        return [
            file.getFileName()
            for file in _field(_field(self.store, "indexService"), "indexFileList")
        ]

    def flush_rocksdb_queues(self) -> None:
        """Write the queues in RocksDB to tables, as the store does from time to time."""
        options = self._real.flush_options()
        _field(self.store.getQueueStore(), "rocksDBStorage").flush(options)

    def expire(self, n_files: int) -> int:
        """Delete the oldest log files and the units that point into them, as retention does."""
        return expire(self._default, n_files)


def expire(store: Any, n_files: int) -> int:
    """Delete the oldest log files of a real store and the units that point into them.

    A file that is just being read or flushed stays, and so do those after it. The broker comes
    back to it when it cleans up the next time, and so does this function.

    Returns:
        How many log files were deleted: fewer if there are no more, for the last one stays.
    """
    commitlog, deleted = store.getCommitLog(), 0
    for _ in _delete_tries():
        deleted += int(commitlog.deleteExpiredFile(0, 0, 1, True, n_files - deleted))
        if deleted == n_files:
            break
    start = commitlog.getMinOffset()
    for queues in store.getConsumeQueueTable().values():
        for queue in queues.values():
            files = _field(queue, "mappedFileQueue")
            for _ in _delete_tries():
                queue.deleteExpiredFile(start)
                first = files.getFirstMappedFile()
                if first is None or first.isAvailable():
                    break
    return deleted


def _delete_tries() -> Iterator[int]:
    for number in range(_DELETE_TRIES):
        yield number
        time.sleep(_DELETE_SECONDS)


def _field(owner: Any, name: str) -> Any:
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)


def _bytes(value: str | list[int] | None) -> bytes:
    """Return a body, which one JSON library spells in base64 and the other as signed numbers."""
    if isinstance(value, str):
        return base64.b64decode(value)
    return bytes(number & 0xFF for number in value or ())
