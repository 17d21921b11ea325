"""A JVM with a version of RocketMQ, of which much is asked by few calls."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interop.rocketmq import JAVA_OPTIONS, resolve_jars, start_jvm

JARS = Path(__file__).parents[2] / ".rocketmq"
OUT_OF_MEMORY = 3  # the exit code of a JVM with this option
_OPTIONS = ["-XX:+ExitOnOutOfMemoryError", "-XX:+UseSerialGC", "-Djava.awt.headless=true"]
_NO_KEYS = "-Dtls.server.mode=disabled"  # DLedger would make one for each store
_STORES_A_COLLECTION = 5
_SHOWN = {  # what is asked of an object of a class when it becomes JSON
    "GetMessageResult": ["messageQueueOffset", "messageMapedList", "messageCount"],
    "SelectMappedBufferResult": ["size"],
    "PutMessageResult": ["appendMessageResult"],
    "AppendMessageResult": ["logicsOffset", "wroteOffset"],
}
_OF_QUEUE = ["topic", "queueId", "minOffsetInQueue", "maxOffsetInQueue"]

# py4j tells the root logger of each call that a JVM did not survive
logging.getLogger().addHandler(logging.NullHandler())


class Jvm:
    """A running JVM.

    Attributes:
        has_broker: whether the broker of the version was published, and not only its store.
        is_5: whether it is of the versions in which a store is given the table of topics.
        stores: how many it was given.
    """

    def __init__(self, version: str, home: Path) -> None:
        self.has_broker, self.is_5, self.stores = version == "5.3.3", version >= "5", 0
        self._log = (home / "jvm.log").open("a")
        options = [*JAVA_OPTIONS, *_OPTIONS, _NO_KEYS]
        self._gateway, self.process = start_jvm(
            resolve_jars(version, JARS), home, self._log, options
        )
        packages = self._gateway.jvm
        self.rocketmq, self.java, self._io = (
            packages.org.apache.rocketmq,
            packages.java,
            packages.io,
        )
        if version < "5.4":  # in that of 5.3.3 the newer library ignores filters
            json_of, filters = (
                packages.com.alibaba.fastjson,
                packages.com.alibaba.fastjson.serializer,
            )
            kind, feature = filters.SerializeFilter, filters.SerializerFeature
        else:
            json_of, filters = packages.com.alibaba.fastjson2, packages.com.alibaba.fastjson2.filter
            kind, feature = filters.Filter, json_of.JSONWriter.Feature
        queue = "queue.ConsumeQueueInterface" if self.is_5 else "ConsumeQueue"
        shown = [
            filters.SimplePropertyPreFilter(
                self.class_of(f"org.apache.rocketmq.store.{name}"),
                self._array(self.java.lang.String, names),
            )
            for name, names in {**_SHOWN, queue: _OF_QUEUE}.items()
        ]
        features = self._array(feature, [feature.WriteNonStringKeyAsString])
        self._json, self._json_options = json_of.JSON, (self._array(kind, shown), features)

    def count(self) -> None:
        """Count a store, and let go of what those before it mapped and opened, now and then."""
        self.stores += 1
        if self.stores % _STORES_A_COLLECTION == 0:
            self.java.lang.System.gc()

    def end(self) -> int:
        """End the JVM, if it did not end by itself, and return its exit code."""
        self._gateway.shutdown()
        self._log.close()
        self.process.stdin.close()
        return int(self.process.wait(timeout=30))

    def class_of(self, name: str) -> Any:
        return self.java.lang.Class.forName(name)

    def value(self, of_java: Any) -> Any:
        """Return a Java object as JSON has it."""
        return json.loads(self._json.toJSONString(of_java, *self._json_options))

    def joined(self, buffers: Any) -> bytes:
        """Return the bytes of a java.util.List of ByteBuffer."""
        kind, of_io = self.class_of("[Ljava.nio.ByteBuffer;"), self._io.netty.buffer
        parts = self.java.util.Arrays.copyOf(buffers.toArray(), buffers.size(), kind)
        return bytes(of_io.ByteBufUtil.getBytes(of_io.Unpooled.wrappedBuffer(parts)))

    def properties(self, settings: Mapping[str, Any]) -> Any:
        """Return settings as a broker reads them from its configuration file."""
        found = self.java.util.Properties()
        for name, value in settings.items():
            found.setProperty(name, str(value).lower() if isinstance(value, bool) else str(value))
        return found

    def configured(self, config: Any, properties: Any) -> Any:
        """Return an object of RocketMQ's with those of the properties that it has."""
        self.rocketmq.common.MixAll.properties2Object(properties, config)
        return config

    def _array(self, kind: Any, items: list[Any]) -> Any:
        found = self._gateway.new_array(kind, len(items))
        for number, item in enumerate(items):
            found[number] = item
        return found


def field_of(owner: Any, name: str) -> Any:
    """Return a private field of a Java object."""
    kind = owner.getClass()
    while all(field.getName() != name for field in kind.getDeclaredFields()):
        kind = kind.getSuperclass()
    field = kind.getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)


def shut_down(java: Any, store: Any) -> None:
    """Shut a store down, but for the seconds that it only sleeps."""
    runnable = java.lang.Class.forName("java.lang.Runnable")
    thread = java.lang.Thread(java.beans.EventHandler.create(runnable, store, "shutdown"))
    thread.start()
    while thread.isAlive():
        frames = [frame.toString() for frame in thread.getStackTrace()[:2]]
        if len(frames) == 2 and "Thread.sleep" in frames[0] and ".shutdown(" in frames[1]:
            thread.interrupt()
        thread.join(10)
