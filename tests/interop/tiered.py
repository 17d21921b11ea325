"""The real tiered storage, which uploads the messages of a real store."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from interop.rocketmq import RealStore, RocketMQ

_PROVIDER = "org.apache.rocketmq.tieredstore.provider.PosixFileSegment"
_SECONDS = 30
_STILL_ROUNDS = 3


class RealTieringStore(RealStore):
    """A TieredMessageStore before a DefaultMessageStore, uploading when it is told to.

    Attributes:
        tier: its ``tieredStoreFilePath``.
    """

    def __init__(
        self,
        real: RocketMQ,
        root: Path,
        sizes: dict[str, Any],
        tier: Path,
        batch_topics: Collection[str] = (),
        **settings: Any,
    ) -> None:
        self.tier = tier
        self._settings = {
            "storePathRootDir": root, "brokerName": "interop",
            "brokerClusterName": "DefaultCluster", "tieredStoreFilePath": tier,
            "tieredBackendServiceProvider": _PROVIDER, "tieredStoreGroupCommit": "false",
            **settings,
        }  # fmt: skip
        attributes = {topic: {"queue.type": "BatchCQ"} for topic in batch_topics}
        super().__init__(real, root, sizes, attributes)

    def _wrapped(self, store: Any, arguments: list[Any]) -> Any:
        rocketmq, java = self._real.rocketmq, self._real.java
        properties = java.util.Properties()
        for name, value in self._settings.items():
            properties.setProperty(name, str(value))
        logger = rocketmq.logging.org.slf4j.LoggerFactory.getLogger("interop")
        configuration = rocketmq.remoting.Configuration(logger).registerConfig(properties)
        config, stats, listener, broker = arguments[:4]
        context = rocketmq.store.plugin.MessageStorePluginContext(
            config, stats, listener, broker, configuration
        )
        self._tiered = rocketmq.tieredstore.TieredMessageStore(context, store)
        return self._tiered

    def begin(self, topic: str, queue_id: int) -> None:
        """Let the upload of a queue begin at its first message, however old that is."""
        queue = self._real.rocketmq.common.message.MessageQueue(
            topic, self._settings["brokerName"], queue_id
        )
        file = self._tiered.getFlatFileStore().computeIfAbsent(queue)
        file.initOffset(self._default.getMinOffsetInQueue(topic, queue_id))

    def upload(self) -> None:
        """Upload all messages of all queues, and wait until they are in the files."""
        self.wait()
        until = time.monotonic() + _SECONDS
        while not self._is_uploaded():
            assert time.monotonic() < until, "the upload takes too long"
            self.dispatch()
            time.sleep(0.05)

    def settle(self) -> None:
        """Upload what a broken tier still takes, until some rounds have changed nothing."""
        ends, still = self._ends(), 0
        until = time.monotonic() + _SECONDS
        while still < _STILL_ROUNDS and time.monotonic() < until:
            self.dispatch()
            time.sleep(0.2)
            before, ends = ends, self._ends()
            still = still + 1 if ends == before else 0

    def dispatch(self) -> None:
        """Upload the next messages of all queues, as the store does from time to time."""
        for file in self._tiered.getFlatFileStore().deepCopyFlatFileToList():
            self._dispatcher().doScheduleDispatch(file, True).join()

    def bytes_of(self, buffer: Any) -> bytes:
        joined = self._real.java.nio.ByteBuffer.allocate(buffer.remaining())
        joined.put(buffer)
        return bytes(joined.array())

    def _dispatcher(self) -> Any:
        kind = self._tiered.getClass()
        field = kind.getDeclaredField("dispatcher")
        field.setAccessible(True)
        return field.get(self._tiered)

    def _ends(self) -> dict[str, tuple[int, int]]:
        """Return where the log and the queue of each queue end in the tier."""
        files = self._tiered.getFlatFileStore().deepCopyFlatFileToList()
        return {
            str(file.getMessageQueue()): (
                int(file.getCommitLogCommitOffset()), int(file.getConsumeQueueCommitOffset())
            )
            for file in files
        }  # fmt: skip

    def _is_uploaded(self) -> bool:
        for file in self._tiered.getFlatFileStore().deepCopyFlatFileToList():
            queue = file.getMessageQueue()
            end = self._default.getMaxOffsetInQueue(queue.getTopic(), queue.getQueueId())
            if file.getConsumeQueueCommitOffset() < end:
                return False
        return True
