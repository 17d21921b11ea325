"""A Kafka broker of one JVM for benchmarks, and the jars of it and of Spark's source and sink."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Self

import pyspark

_SPARK_HOME = Path(pyspark.__file__).parent
_START_SECONDS = 60
_MEMORY = "1g"
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
log.dirs={logs}
num.partitions={partitions}
offsets.topic.replication.factor=1
"""


def sink_jars(folder: Path, version: str) -> list[Path]:
    """Return the jars of Spark's Kafka sink of a version of Spark."""
    return _resolve(folder / "sink", f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}")


def _broker_jars(folder: Path, sink: list[Path]) -> list[Path]:
    """Return the jars of the broker of the same version as the client that the sink has."""
    prefix = "org.apache.kafka_kafka-clients-"
    (client,) = (jar for jar in sink if jar.name.startswith(prefix))
    version = client.stem.removeprefix(prefix)
    jars = _resolve(folder / "broker", f"org.apache.kafka:kafka_2.13:{version}")
    return [*jars, *(_SPARK_HOME / "jars").glob("scala-library-*.jar")]  # which Spark leaves out


def _resolve(folder: Path, package: str) -> list[Path]:
    """Let Spark's package resolution fetch the jars of a package, once."""
    folder = folder / package.rpartition(":")[2]
    if not (folder / "ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        nothing = folder / "nothing.py"
        nothing.write_text("")
        settings = {"spark.jars.ivy": str(folder), "spark.ui.enabled": "false"}
        done = subprocess.run(
            [
                str(_SPARK_HOME / "bin" / "spark-submit"),
                *("--master", "local[1]", "--packages", package),
                *(word for item in settings.items() for word in ("--conf", "=".join(item))),
                str(nothing),
            ],
            env=os.environ | {"SPARK_HOME": str(_SPARK_HOME), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{package} could not be resolved:\n{done.stderr[-2000:]}")
        (folder / "ready").touch()
    return sorted((folder / "jars").glob("*.jar"))


class KafkaBroker:
    """A broker that is its own controller; ``address`` is where it listens, ``log_dir`` its log."""

    def __init__(self, jars: Path, sink: list[Path], folder: Path, n_partitions: int) -> None:
        self._java = [
            str(Path(os.environ["JAVA_HOME"], "bin", "java"))
            if "JAVA_HOME" in os.environ
            else "java",
            f"-Xmx{_MEMORY}",
            *("-cp", os.pathsep.join(map(str, _broker_jars(jars, sink)))),
        ]
        self._folder, self._n_partitions = folder, n_partitions
        self.log_dir = folder / "logs"

    def __enter__(self) -> Self:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        broker, controller = _free_ports(2)
        self.address = f"127.0.0.1:{broker}"
        properties = self._folder / "server.properties"
        properties.write_text(
            _PROPERTIES.format(
                broker=broker,
                controller=controller,
                logs=self.log_dir,
                partitions=self._n_partitions,
            )
        )
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatted = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
        subprocess.run([*self._java, *formatted], check=True, stdout=sys.stderr)
        with (self._folder / "broker.log").open("w") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(properties)], stdout=log, stderr=log
            )
        self.pid = self._process.pid
        try:
            self._wait(broker)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self, port: int) -> None:
        until = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < until:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        log = (self._folder / "broker.log").read_text()
        raise RuntimeError(f"the Kafka broker did not start:\n{log[-2000:]}")

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # its data is not needed any more
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
