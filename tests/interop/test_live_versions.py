"""Running brokers in processes of their own: of several versions, and behind a proxy."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmqstore
from connector.engine import Engine
from connector.streams import drain
from interop.conftest import jars_of
from interop.rocketmq import JAVA_OPTIONS
from interop.test_live_brokers import SIZES, write_topics
from ports import free_ports
from reading import LOG_COLUMNS, Row, by_queue_of_broker, rows
from rmqstore.inspect.verify import verify

pytestmark = pytest.mark.interop

N = 3000
QUEUES = 4


@contextmanager
def running(
    jars: Path, home: Path, main: str, conf: Path, port: int, host: str, option: str = "-c"
) -> Iterator[None]:
    # For TLS a proxy would need a native library of Netty.
    ipv6 = ["-Djava.net.preferIPv6Addresses=true"] if ":" in host else []
    command = [
        "java", *JAVA_OPTIONS, *ipv6, "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
        f"-Duser.home={home}", "-Dtls.server.mode=disabled", "-cp", f"{jars}/*",
        f"org.apache.rocketmq.{main}", option, conf,
    ]  # fmt: skip
    output = conf.with_suffix(".out")
    environment = os.environ | {"ROCKETMQ_HOME": str(home)}
    with (
        output.open("w") as file,
        subprocess.Popen(command, env=environment, stdout=file, stderr=file) as process,
    ):
        try:
            until = time.monotonic() + 60
            while not is_open(host, port):
                assert process.poll() is None, output.read_text()
                assert time.monotonic() < until, output.read_text()
                time.sleep(0.2)
            yield
        finally:
            process.terminate()


def is_open(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def running_cluster(
    version: str, folder: Path, roots: list[Path], host: str
) -> Iterator[list[str]]:
    """Run a name server and a broker for each store; yield the address of all, and of each."""
    jars = jars_of(f"{version}-broker")
    shown = f"[{host}]" if ":" in host else host
    name_port, *ports = free_ports(1 + 3 * len(roots))
    home = folder / "home"
    (home / "conf").mkdir(parents=True)
    for name in ("namesrv", "broker"):  # which 4.x does not start without
        (home / "conf" / f"logback_{name}.xml").write_text("<configuration/>")
    conf = folder / "names.conf"
    bind = "::" if ":" in host else "0.0.0.0"
    conf.write_text(f"listenPort={name_port}\nbindAddress={bind}\n")
    with ExitStack() as stack:
        start = ("namesrv.NamesrvStartup", conf, name_port, host)
        stack.enter_context(running(jars, home, *start))
        for number, root in enumerate(roots):
            write_topics(root, {("Orders", QUEUES - 1)}, set())
            port = ports[3 * number + 2]  # a broker takes the port two below as well
            settings = {
                "brokerName": root.name, "brokerClusterName": "C", "brokerId": 0,
                "brokerIP1": shown, "brokerIP2": shown, "listenPort": port,
                "haListenPort": ports[3 * number], "namesrvAddr": f"{shown}:{name_port}",
                "storePathRootDir": root, "storePathCommitLog": root / "commitlog", **SIZES,
                # as 4.2 spells it
                "mapedFileSizeCommitLog": SIZES["mappedFileSizeCommitLog"],
                "mapedFileSizeConsumeQueue": SIZES["mappedFileSizeConsumeQueue"],
            }  # fmt: skip
            conf = folder / f"{root.name}.conf"
            conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            stack.enter_context(running(jars, home, "broker.BrokerStartup", conf, port, host))
        yield [f"rocketmq://{shown}:{name_port}", *(f"{shown}:{port}" for port in ports[2::3])]


def wait_for_brokers(address: str, n_brokers: int) -> None:
    until = time.monotonic() + 60
    known: set[str] = set()
    while len(known) < n_brokers:
        assert time.monotonic() < until, known
        time.sleep(0.5)
        with rmqstore.open(address) as cluster, suppress(rmqstore.OptionError):
            known = {*cluster.queue_ranges("Orders")}


@pytest.mark.parametrize(
    ("version", "n_brokers", "host"),
    [
        ("4.2.0", 1, "127.0.0.1"), ("4.7.1", 1, "127.0.0.1"), ("5.1.4", 1, "127.0.0.1"),
        ("5.4.0", 2, "127.0.0.1"), ("5.4.0", 1, "::1"),
    ],
)  # fmt: skip
def test_what_is_sent_is_read_and_copied_as_the_store_holds_it(
    version: str, n_brokers: int, host: str, tmp_path: Path
) -> None:
    schema = pa.schema(
        {"topic": pa.string(), "body": pa.binary(), "tags": pa.string(), "keys": pa.string()}
    )
    given = [
        {
            "topic": "Orders", "body": b"body %d " % number * (number % 30 + 1),
            "tags": f"T{number % 3}", "keys": f"k{number}",
        }
        for number in range(N)
    ]  # fmt: skip
    roots = [tmp_path / f"broker-{number}" for number in range(n_brokers)]
    for root in roots:
        root.mkdir()

    with running_cluster(version, tmp_path, roots, host) as (address, *addresses):
        wait_for_brokers(address, n_brokers)
        with rmqstore.open(address, "a") as writer:
            writer.append(pa.Table.from_pylist(given, schema))
        with rmqstore.open(address) as cluster:
            chosen: dict[str, Any] = {"subscribe": "Orders", "columns": LOG_COLUMNS}
            served = rows(cluster.scan(**chosen))
            tagged = rows(cluster.scan(**chosen, tags="T1"))
            newest = rows(cluster.scan(**chosen, last=3))
            middle = sorted(row["storeTimestamp"] for row in served)[N // 2]
            later = rows(cluster.scan(**chosen, starting_timestamp=middle))
        for root, follows in zip(roots, addresses, strict=True):
            rmqstore.follow(follows, tmp_path / f"copy-of-{root.name}", once=True)
    stored, copied = list[Row](), list[Row]()
    for root in roots:
        with rmqstore.open(root, broker_name=root.name) as store:
            stored += rows(store.scan(**chosen))
        with rmqstore.open(tmp_path / f"copy-of-{root.name}", broker_name=root.name) as store:
            copied += rows(store.scan(**chosen))
            assert list(verify(store)) == []
    assert by_queue_of_broker(copied) == by_queue_of_broker(stored)
    assert by_queue_of_broker(served) == by_queue_of_broker(stored)
    assert len(by_queue_of_broker(stored)) == n_brokers * QUEUES
    assert sorted((row["keys"], row["body"], row["tags"]) for row in stored) == sorted(
        (row["keys"], row["body"], row["tags"]) for row in given
    )
    assert by_queue_of_broker(tagged) == by_queue_of_broker(
        [row for row in served if row["tags"] == "T1"]
    )
    assert by_queue_of_broker(newest) == {
        key: found[-3:] for key, found in by_queue_of_broker(served).items()
    }
    assert by_queue_of_broker(later) == by_queue_of_broker(
        [row for row in served if row["storeTimestamp"] >= middle]
    )


def test_a_proxy_passes_on_reads_streams_and_sends(engine: Engine, tmp_path: Path) -> None:
    root = tmp_path / "broker-0"
    root.mkdir()
    grpc_port, port = free_ports(2)
    schema = pa.schema({"topic": pa.string(), "body": pa.binary()})
    small = [{"topic": "Orders", "body": b"%d" % number} for number in range(N)]
    large = [{"topic": "Orders", "body": bytes(300_000)}] * 100

    with running_cluster("5.4.0", tmp_path, [root], "127.0.0.1") as (address, _):
        wait_for_brokers(address, 1)
        settings = {
            "rocketMQClusterName": "C", "proxyMode": "cluster",
            "namesrvAddr": address.removeprefix("rocketmq://"), "localServeAddr": "127.0.0.1",
            "grpcServerPort": grpc_port, "remotingListenPort": port,
        }  # fmt: skip
        home = tmp_path / "home"
        conf = home / "conf" / "rmq-proxy.json"
        conf.write_text(json.dumps(settings))
        (home / "conf" / "rmq.proxy.logback.xml").write_text("<configuration/>")
        start = ("proxy.ProxyStartup", conf, port, "127.0.0.1", "-pc")
        with running(jars_of("5.3.3-proxy"), home, *start):
            through = f"rocketmq://127.0.0.1:{port}"
            with rmqstore.open(through, "a") as writer:
                for given in (small, large):
                    writer.append(pa.Table.from_pylist(given, schema))
            chosen: dict[str, Any] = {"subscribe": "Orders", "columns": LOG_COLUMNS}
            with rmqstore.open(through) as cluster:
                served = rows(cluster.scan(**chosen))
                middle = sorted(row["storeTimestamp"] for row in served)[N // 2]
                later = rows(cluster.scan(**chosen, starting_timestamp=middle))
                with pytest.raises(rmqstore.BrokerRefusedError, match="no list of topics"):
                    cluster.topics()
            options = {"subscribe": "Orders", "startingOffsets": "earliest"}
            n_streamed = [
                sum(
                    one["numInputRows"] for one in drain(engine, through, tmp_path / "q", **options)
                )
            ]
            with rmqstore.open(through, "a") as writer:
                writer.append(pa.Table.from_pylist(small, schema))
            for _ in range(2):
                found = drain(engine, through, tmp_path / "q", **options)
                n_streamed.append(sum(one["numInputRows"] for one in found))
    with rmqstore.open(root, broker_name=root.name) as store:
        of_queues = by_queue_of_broker(rows(store.scan(**chosen)))
    n_served = {key: len(found) for key, found in by_queue_of_broker(served).items()}
    stored = [row for key, found in of_queues.items() for row in found[: n_served[key]]]
    assert by_queue_of_broker(served) == by_queue_of_broker(stored)
    assert n_streamed == [N + 100, N, 0]
    assert sorted(row["body"] for row in served) == sorted(row["body"] for row in small + large)
    assert by_queue_of_broker(later) == by_queue_of_broker(
        [row for row in stored if row["storeTimestamp"] >= middle]
    )
