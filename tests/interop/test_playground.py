"""The playground has what it says, by path and over the network, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import rmqstore
from interop.conftest import jars_of

pytestmark = pytest.mark.interop
EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = [sys.executable, str(EXAMPLES / "playground.py")]
SECONDS = 240  # after which it ends by itself


def groups_lag(root: Path) -> dict[str, int]:
    with rmqstore.open(root) as store:
        rows = store.view("groups", columns="consumerGroup,topic,lag").to_arrow().to_pylist()
    lag = Counter[str]()
    for row in rows:
        if row["topic"] == "Orders":
            lag[row["consumerGroup"]] += row["lag"] or 0
    return dict(lag)


def test_the_playground_is_open_until_ctrl_c(tmp_path: Path) -> None:
    jars_of("5.3.3")
    with socket.create_server(("", 9876)) if _is_free(9876) else socket.socket():  # it is taken
        playground = subprocess.Popen(
            [*PROGRAM, "--seconds", str(SECONDS)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)}, start_new_session=True,
        )  # fmt: skip
        assert playground.stdout is not None
        try:
            shown = ""
            while 'format("console")' not in shown:
                line = playground.stdout.readline()
                assert line, f"it ended: {shown}"
                shown += line
            root = Path(re.search(r"rmqstore stat (\S+)", shown)[1])
            address = re.search(r"rocketmq://127\.0\.0\.1:\d+", shown)[0]
            assert not address.endswith(":9876")
            children = Path(f"/proc/{playground.pid}/task/{playground.pid}/children")
            (jvm,) = children.read_text(encoding="utf-8").split()
            _require_messages(root, address)
        finally:
            os.killpg(playground.pid, signal.SIGINT)  # as a terminal does
            last = playground.communicate(timeout=60)[0]
    assert playground.returncode == 0
    assert "The playground has ended" in last
    assert not Path(f"/proc/{jvm}").exists()
    assert [*tmp_path.iterdir()] == []


def _require_messages(root: Path, address: str) -> None:
    until = time.monotonic() + SECONDS / 2
    topics = {"Orders", "Payments", "Reminders", "%DLQ%billing"}
    while True:
        with rmqstore.open(root) as store:
            seen = store.scan(include_system_topics=True, columns="topic").to_arrow()["topic"]
            pending = store.scan(include_pending=True, columns="topic,pending").to_arrow()[
                "pending"
            ]
        lag = groups_lag(root)
        if (
            topics <= {*seen.to_pylist()}
            and {"delay", "timer", "transaction"} <= {*pending.to_pylist()}
            and lag.get("warehouse", 0) > 100
        ):
            break
        assert time.monotonic() < until, (Counter(seen.to_pylist()), lag)
        time.sleep(1)
    with rmqstore.open(root) as store:
        kinds = [(row.tags, row.reconsumeTimes) for row in store.query("Orders", "order-25")]
        assert kinds == [("created", 0), ("paid", 0), ("shipped", 0)]
        dead = store.query("%DLQ%billing", "order-25")
        assert [message.reconsumeTimes for message in dead] == [3]
        by_path = store.scan(subscribe="Orders", columns="queueId,queueOffset,body").to_arrow()
    with rmqstore.open(address) as cluster:
        over_the_network = cluster.scan(
            subscribe="Orders", columns="queueId,queueOffset,body"
        ).to_arrow()
    assert len(by_path) > 400
    found = {tuple(row.values()) for row in over_the_network.to_pylist()}
    assert {tuple(row.values()) for row in by_path.to_pylist()} <= found


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


def test_without_java_the_playground_says_what_it_needs(tmp_path: Path) -> None:
    done = subprocess.run(
        PROGRAM, env={**os.environ, "JAVA_HOME": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "error: RocketMQ needs Java 17 or later: install a JDK 17, or set JAVA_HOME\n"
    )


def test_an_error_ends_the_jvm_and_is_a_line(tmp_path: Path) -> None:
    jars_of("5.3.3")
    done = subprocess.run(
        [*PROGRAM, "--name-server", "127.0.0.1:1"], env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: org.apache.rocketmq.")
    assert done.stderr.count("\n") == 1
    assert [*tmp_path.iterdir()] == []


def test_the_containers_run_the_same_release_with_the_store_beside_them() -> None:
    text = (EXAMPLES / "compose.yaml").read_text(encoding="utf-8")
    assert {*re.findall(r"image: (.+)", text)} == {"apache/rocketmq:5.3.3"}
    assert "- ./store:/store\n" in text
    assert "storePathRootDir = /store\n" in text
    for port in (9876, 10909, 10911):
        assert f'- "{port}:{port}"\n' in text
