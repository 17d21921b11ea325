"""A playground: a real RocketMQ 5.3.3 with the messages of a shop, to look at with rmqstore.

Usage: python examples/playground.py [--seconds N] [--name-server HOST:PORT]

A name server and a broker run in a JVM of this program, over a folder that is thrown away. Ctrl-C
ends all. With --name-server messages are sent to brokers that run already, such as those of
examples/compose.yaml.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from py4j.java_gateway import CallbackServerParameters, JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from rocketmq_jvm import JAVA_OPTIONS, JarsUnavailableError, resolve_jars, start_jvm

ROOT = Path(__file__).resolve().parents[1]
TOPICS = {"Orders": 4, "Payments": 2, "Reminders": 1}  # with their numbers of queues
AT_ONCE = 150  # orders, so that there is something to see
PAUSE_SECONDS = 0.2
REGISTERED_SECONDS = 30  # within which a broker registers, or registers again
SIZES = {
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 20 * 20_000,
    "mappedFileSizeTimerLog": 4 << 20,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "diskMaxUsedSpaceRatio": 99,
    "osPageCacheBusyTimeOutMills": 20_000,  # a machine may be busy
}

BY_PATH = """
By path, beside the running broker:

  rmqstore stat {store}
  rmqstore verify -c {conf}
  rmqstore dump {store} -t Orders --follow --columns queueId,queueOffset,tags,keys,body
  rmqstore query {store} -t Orders -k order-25
  rmqstore view groups {store} --columns consumerGroup,topic,queueId,lag,lagMillis
  rmqstore view deadLetters {store} --columns kind,consumerGroup,keys,reconsumeTimes
"""
NEXT = """
The shop is open: messages come until Ctrl-C. In another terminal, in this folder:

  source {activate}
{by_path}
Over the network, without the files:

  rmqstore dump {address} -t Payments --last 3 --columns queueId,queueOffset,tags,keys

In Python{waiting}:

  import rmqstore
  with rmqstore.open("{place}") as store:
      scan = store.scan({pending}columns="topic,keys,tags,{pending_column}storeTimestamp")
      for row in scan.to_arrow().to_pylist()[-5:]:
          print(row)

In Spark, in pyspark:

  new = spark.readStream.format("rmqstore").option("subscribe", "Orders").load("{address}")
  new.select("queueId", "queueOffset", "tags", "keys").writeStream.format("console").start()
"""
NOTHING_PENDING = {"waiting": "", "pending": "", "pending_column": ""}  # only files show it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, help="end after so long; not before Ctrl-C else")
    parser.add_argument("--name-server", metavar="HOST:PORT", help="of brokers that run already")
    given = parser.parse_args()
    end_on_signals()
    try:
        play(given.name_server, given.seconds or float("inf"))
    except KeyboardInterrupt:
        print("\nThe playground has ended, and its folder is gone.", flush=True)
    except (JarsUnavailableError, Py4JError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    return 0


def play(name_server: str | None, seconds: float) -> None:
    """Start what is needed and send messages until the time is over or Ctrl-C is pressed."""
    home = os.environ.get("JAVA_HOME")
    if not shutil.which(f"{home}/bin/java" if home else "java"):
        raise OSError("RocketMQ needs Java 17 or later: install a JDK 17, or set JAVA_HOME")
    until = time.monotonic() + seconds
    print("RocketMQ 5.3.3: fetching its jars, 79 MB, if they are not there yet …", flush=True)
    jars = resolve_jars("5.3.3", ROOT / ".rocketmq")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="rmqstore-playground-")))
        log = stack.enter_context((folder / "jvm.log").open("w"))
        options = [*JAVA_OPTIONS, "-Xms64m", "-XX:+UseSerialGC"]
        print("Starting a JVM …", flush=True)
        gateway, process = start_jvm(jars, folder, log, options, apart=True)
        stack.callback(end, process)
        stack.enter_context(errors_of_java())
        store = None
        if name_server is None:
            print("Starting a name server and a broker …", flush=True)
            store = folder / "store"
            name_server = start_broker(gateway, store)
        shop = Shop(gateway, name_server)
        print("Sending the first messages …", flush=True)
        for number in itertools.count(1):
            shop.order(number)
            if number == AT_ONCE:
                print(what_next(name_server, store), flush=True)
            if number >= AT_ONCE:
                time.sleep(random.uniform(0, 2 * PAUSE_SECONDS))
            if time.monotonic() > until:
                raise KeyboardInterrupt


def what_next(name_server: str, store: Path | None) -> str:
    """Return what to type next."""
    address = f"rocketmq://{name_server}"
    activate = os.path.relpath(Path(sys.prefix) / "bin" / "activate")
    words = {"address": address, "activate": activate}
    if store is None:  # its files are elsewhere
        return NEXT.format(by_path="", place=address, **NOTHING_PENDING, **words)
    return NEXT.format(
        by_path=BY_PATH.format(store=store, conf=store.with_name("broker.conf")),
        waiting=", with what waits for its time and payments of which nobody knows",
        pending="include_pending=True, ",
        pending_column="pending,",
        place=store,
        **words,
    )


def end_on_signals() -> None:
    """Let Ctrl-C, a closed terminal and `kill` end the program in the same way, once."""
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

    def stop(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)  # what cleans up is not interrupted
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, stop)


@contextmanager
def errors_of_java() -> Iterator[None]:
    """Raise an error of Java as one that can be shown when its JVM is gone, and Ctrl-C as such."""
    try:
        yield
    except Py4JJavaError as err:
        raise OSError(err.java_exception.toString()) from None
    except AttributeError as err:  # py4j's own, when a call is interrupted
        if isinstance(err.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def end(process: subprocess.Popen[bytes]) -> None:
    """End the JVM at once: its folder is thrown away."""
    logging.disable()  # workers whose JVM is gone
    process.kill()
    process.wait()


def free_port(first: int, *beside: int) -> int:
    """Return a port from ``first`` on that is free, as are those at these distances."""
    for port in range(first, first + 2000):
        if all(is_free(port + distance) for distance in (0, *beside)):
            return port
    raise OSError(f"no port from {first} on is free")


def is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except OSError:
            return False
    return True


def start_broker(gateway: JavaGateway, store: Path) -> str:
    """Start a name server and a broker over a new store; return the name server's address."""
    rocketmq = gateway.jvm.org.apache.rocketmq
    netty = rocketmq.remoting.netty
    server_config = listening_on(netty, free_port(9876))
    names = rocketmq.namesrv.NamesrvController(
        rocketmq.common.namesrv.NamesrvConfig(), server_config
    )
    if not names.initialize():
        raise OSError("the name server does not start")
    names.start()
    name_server = f"127.0.0.1:{server_config.getListenPort()}"

    config = rocketmq.common.BrokerConfig()
    config.setBrokerName("playground")
    config.setBrokerIP1("127.0.0.1")
    config.setNamesrvAddr(name_server)
    config.setWaitTimeMillsInSendQueue(20_000)
    config.setListenPort(free_port(10911, -2, 1))  # a broker also takes the port two below
    server_config = listening_on(netty, config.getListenPort())
    store_config = rocketmq.store.config.MessageStoreConfig()
    store_config.setStorePathRootDir(str(store))
    store_config.setStorePathCommitLog(str(store / "commitlog"))
    store_config.setHaListenPort(config.getListenPort() + 1)
    for name, value in SIZES.items():
        getattr(store_config, f"set{name[0].upper()}{name[1:]}")(value)
    settings = {"brokerName": "playground", "storePathRootDir": store, **SIZES}
    lines = [f"{name}={value}\n" for name, value in settings.items()]
    store.with_name("broker.conf").write_text("".join(lines))  # for rmqstore -c
    broker = rocketmq.broker.BrokerController(
        config, server_config, netty.NettyClientConfig(), store_config
    )
    if not broker.initialize():
        raise OSError("the broker does not start")
    broker.start()
    broker.registerBrokerAll(True, False, True)  # noqa: FBT003 - Java has no names
    return name_server


def listening_on(netty: Any, port: int) -> Any:  # noqa: ANN401 - objects of Java
    """Return the configuration of a server that only this machine reaches."""
    config = netty.NettyServerConfig()
    config.setBindAddress("127.0.0.1")
    config.setListenPort(port)
    return config


class Shop:
    """Sends orders, payments and reminders, and consumes the orders."""

    def __init__(self, gateway: JavaGateway, name_server: str) -> None:
        self.rocketmq = gateway.jvm.org.apache.rocketmq
        self.name_server = name_server
        listen_to_java(gateway)
        self.make_topics()
        # All messages of an order are in one queue.
        self.by_order = self.rocketmq.client.producer.selector.SelectMessageQueueByHash()
        self.producer = self.client(self.rocketmq.client.producer.TransactionMQProducer("shop"))
        self.producer.setTransactionListener(Bank(self.rocketmq))
        self.producer.setSendMsgTimeout(20_000)
        self.producer.start()
        # One order in 25 fails until it is a dead letter, one in 10 the first time only.
        self.consume("billing", Worker(self.rocketmq, 0.0, 25, 10))
        self.consume("warehouse", Worker(self.rocketmq, 0.5))  # slower than orders come

    def client(self, client: Any) -> Any:  # noqa: ANN401 - an object of Java
        client.setNamesrvAddr(self.name_server)
        return client

    def make_topics(self) -> None:
        admin = self.client(self.rocketmq.tools.admin.DefaultMQAdminExt())
        admin.start()
        until = time.monotonic() + REGISTERED_SECONDS
        while (brokers := admin.examineBrokerClusterInfo().getBrokerAddrTable()).isEmpty():
            if time.monotonic() > until:
                raise OSError(f"the name server {self.name_server} knows no broker")
            time.sleep(0.2)  # a broker that just started may not have reached it yet
        for broker in brokers.values():
            for topic, n_queues in TOPICS.items():
                config = self.rocketmq.common.TopicConfig(topic, n_queues, n_queues)
                admin.createAndUpdateTopicConfig(broker.selectBrokerAddr(), config)
        admin.shutdown()

    def consume(self, group: str, worker: Worker) -> None:
        consumer = self.client(self.rocketmq.client.consumer.DefaultMQPushConsumer(group))
        where = self.rocketmq.common.consumer.ConsumeFromWhere
        consumer.setConsumeFromWhere(where.CONSUME_FROM_FIRST_OFFSET)
        consumer.setMaxReconsumeTimes(2)
        consumer.setConsumeThreadMin(1)
        consumer.setConsumeThreadMax(1)
        consumer.subscribe("Orders", "*")
        consumer.registerMessageListener(worker)
        consumer.start()

    def message(self, topic: str, number: int, tags: str, **body: object) -> Any:  # noqa: ANN401
        text = json.dumps({"order": number, **body}).encode()
        made = self.rocketmq.common.message.Message(topic, tags, f"order-{number}", text)
        made.putUserProperty("region", ("EU", "US", "APAC")[number % 3])
        return made

    def order(self, number: int) -> None:
        """Let an order come in, earlier ones be paid and shipped, and customers be reminded."""
        euros = round(random.lognormvariate(3.5, 0.8), 2)
        items = ["a line of a long order"] * (500 if number % 40 == 0 else number % 4)
        self.send(self.message("Orders", number, "created", euros=euros, items=items), number)
        if (paid := number - 3) > 0:
            payment = self.message(
                "Payments", paid, "card" if paid % 4 else "transfer", euros=euros
            )
            self.producer.sendMessageInTransaction(payment, str(paid))
            self.send(self.message("Orders", paid, "paid"), paid)
        if (ready := number - 8) > 0:
            self.send(self.message("Orders", ready, "shipped" if ready % 9 else "cancelled"), ready)
        if number % 5 == 0:
            reminder = self.message("Reminders", number, "rate-us")
            if number % 2:
                reminder.setDelayTimeLevel(random.choice((3, 5, 14)))  # 10 s, a minute, 10 minutes
            else:
                reminder.setDelayTimeSec(random.choice((20, 3600)))
            self.producer.send(reminder)

    def send(self, message: Any, number: int) -> None:  # noqa: ANN401
        self.producer.send(message, self.by_order, str(number))


def listen_to_java(gateway: JavaGateway) -> None:
    """Let Java call the methods of the classes below."""
    gateway.start_callback_server(
        CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True)
    )
    server = gateway.java_gateway_server
    port = gateway.get_callback_server().get_listening_port()
    server.resetCallbackClient(server.getCallbackClient().getAddress(), port)


class Bank:
    """Decides on payments: most are made, one in 7 is refused, and of one in 11 nobody knows."""

    def __init__(self, rocketmq: Any) -> None:  # noqa: ANN401
        self.states = rocketmq.client.producer.LocalTransactionState

    def executeLocalTransaction(self, _message: object, number: str) -> object:  # noqa: N802
        if int(number) % 7 == 0:
            return self.states.ROLLBACK_MESSAGE
        return self.states.COMMIT_MESSAGE if int(number) % 11 else self.states.UNKNOW

    def checkLocalTransaction(self, _message: object) -> object:  # noqa: N802
        return self.states.UNKNOW

    class Java:
        implements = ("org.apache.rocketmq.client.producer.TransactionListener",)


class Worker:
    """Works on orders: it takes its time, fails always at some and once at others."""

    def __init__(self, rocketmq: Any, seconds: float, always: int = 0, once: int = 0) -> None:  # noqa: ANN401
        self.states = rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus
        self.seconds, self.always, self.once = seconds, always, once

    def consumeMessage(self, messages: Any, context: Any) -> object:  # noqa: ANN401, N802
        (message,) = messages
        time.sleep(self.seconds)
        number = int(message.getKeys().removeprefix("order-"))
        if message.getTags() == "created" and (
            (self.always and number % self.always == 0)
            or (self.once and number % self.once == 0 and message.getReconsumeTimes() == 0)
        ):
            context.setDelayLevelWhenNextConsume(1)  # a second
            return self.states.RECONSUME_LATER
        return self.states.CONSUME_SUCCESS

    class Java:
        implements = ("org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently",)


if __name__ == "__main__":
    sys.exit(main())
