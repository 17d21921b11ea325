"""A real name server and a real broker that serves a store, and real clients, all in one JVM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from interop.rocketmq import Message, RocketMQ, expire
from ports import free_ports

_POLL_MS = 500


class RealBroker:
    """A NamesrvController and a BrokerController over the store at ``root``, as a context manager.

    Args:
        sizes: fields of MessageStoreConfig.
        ports: ports of the name server, the broker and its replicas, to reuse those of the broker
            that this one replaces.
    """

    def __init__(
        self, real: RocketMQ, root: Path, sizes: dict[str, Any], ports: Sequence[int] | None = None
    ) -> None:
        self._real = real
        self.ports = ports or free_ports(3)
        name_port, port, ha_port = self.ports
        self.namesrv_address, self.address = f"127.0.0.1:{name_port}", f"127.0.0.1:{port}"
        self.name_server = real.start_name_server(name_port)
        config = real.rocketmq.common.BrokerConfig()
        config.setBrokerName("interop")
        config.setNamesrvAddr(self.namesrv_address)
        config.setEnableControllerMode(False)
        settings = {"haListenPort": ha_port, "fileReservedTime": 1_000_000, **sizes}
        self.controller = real.start_broker(config, port, real.store_config(root, **settings))
        self.controller.registerBrokerAll(True, False, True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.controller.shutdown()
        self.name_server.shutdown()

    def send(self, topic: str, bodies: list[bytes], *, tags: str = "", keys: str = "") -> list[str]:
        client = self._real.rocketmq.client.producer.DefaultMQProducer("interop-producer")
        client.setNamesrvAddr(self.namesrv_address)
        client.start()
        message = self._real.rocketmq.common.message.Message
        try:
            return [client.send(message(topic, tags, keys, body)).getMsgId() for body in bodies]
        finally:
            client.shutdown()

    def set_queues(self, topic: str, count: int) -> None:
        """Give a topic ``count`` queues, as mqadmin updateTopic does."""
        config = self._real.rocketmq.common.TopicConfig(topic, count, count)
        self.controller.getTopicConfigManager().updateTopicConfig(config)
        self.announce(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic at the broker and at the name server, as mqadmin deleteTopic does."""
        admin = self._real.rocketmq.tools.admin.DefaultMQAdminExt()
        admin.setNamesrvAddr(self.namesrv_address)
        admin.start()
        try:
            admin.deleteTopicInBroker({self.address}, topic)
            admin.deleteTopicInNameServer({self.namesrv_address}, topic)
        finally:
            admin.shutdown()

    def announce(self, topic: str, seconds: float = 30) -> None:
        """Register a topic until the name server knows it with its broker."""
        config = self.controller.getTopicConfigManager().selectTopicConfig(topic)
        until = time.monotonic() + seconds
        while self.name_server.getRouteInfoManager().pickupTopicRouteData(topic) is None:
            assert time.monotonic() < until, f"the name server does not hear of {topic}"
            self.controller.registerSingleTopicAll(config)
            time.sleep(0.2)

    def expire(self, n_files: int) -> int:
        """Delete the oldest log files and the units that point into them, as retention does."""
        return expire(self.controller.getMessageStore(), n_files)

    def consume(self, topic: str, group: str, count: int, seconds: float = 60) -> list[Message]:
        """Return what a consumer of a new group receives: at least ``count`` messages.

        Messages that arrive directly after these are returned as well.
        """
        client = self._real.rocketmq.client.consumer.DefaultLitePullConsumer(group)
        client.setNamesrvAddr(self.namesrv_address)
        where = self._real.rocketmq.common.consumer.ConsumeFromWhere
        client.setConsumeFromWhere(where.CONSUME_FROM_FIRST_OFFSET)
        client.subscribe(topic, "*")
        client.start()
        found: list[Message] = []
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                polled = client.poll(_POLL_MS)
                found += self._real.spell_messages(polled)
                if not polled and len(found) >= count:
                    break
            client.commit()
        finally:
            client.shutdown()
        return found
