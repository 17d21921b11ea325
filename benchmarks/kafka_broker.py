"""A Kafka broker of one JVM for benchmarks and tests; jars of it and of Spark's source and sink."""

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


class JarsUnavailableError(RuntimeError):
    """Jars cannot be fetched."""


def sink_jars(folder: Path, version: str) -> list[Path]:
    """Return the jars of Spark's Kafka sink of a version of Spark."""
    return _resolve(folder / "sink", f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}")


def broker_jars(folder: Path, version: str) -> list[Path]:
    """Return the jars of a broker and its clients."""
    jars = _resolve(folder / "broker", f"org.apache.kafka:kafka_2.13:{version}")
    return [*jars, *(_SPARK_HOME / "jars").glob("scala-library-*.jar")]  # which Spark leaves out


def client_version(sink: list[Path]) -> str:
    """Return the version of the client that Spark's sink has."""
    prefix = "org.apache.kafka_kafka-clients-"
    (client,) = (jar for jar in sink if jar.name.startswith(prefix))
    return client.stem.removeprefix(prefix)


def _resolve(folder: Path, package: str) -> list[Path]:
    """Let Spark's package resolution fetch the jars of a package, once.

    Raises:
        JarsUnavailableError: they cannot be fetched.
    """
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
            reason = f"{package} could not be resolved:\n{done.stderr[-2000:]}"
            raise JarsUnavailableError(reason)
        (folder / "ready").touch()
    return sorted((folder / "jars").glob("*.jar"))


class KafkaBroker:
    """A broker that is its own controller; ``address`` is where it listens, ``log_dir`` its log."""

    def __init__(
        self,
        jars: Path,
        sink: list[Path],
        folder: Path,
        n_partitions: int,
        *,
        version: str | None = None,
        properties: str = "",
    ) -> None:
        """Take a broker that is not started yet.

        Args:
            jars: where jars are kept.
            sink: the jars of Spark's sink, of whose client the broker has the version.
            folder: where the broker writes; it is made afresh.
            n_partitions: of topics that are made by writing to them.
            version: of the broker, in place of that of the client.
            properties: more lines of its settings.
        """
        classes = broker_jars(jars, version or client_version(sink))
        self._java = [
            str(Path(os.environ["JAVA_HOME"], "bin", "java"))
            if "JAVA_HOME" in os.environ
            else "java",
            f"-Xmx{_MEMORY}",
            *("-cp", os.pathsep.join(map(str, classes))),
        ]
        self._folder, self._n_partitions, self._more = folder, n_partitions, properties
        self.log_dir = folder / "logs"

    def __enter__(self) -> Self:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._port, controller = _free_ports(2)
        self.address = f"127.0.0.1:{self._port}"
        self._properties = self._folder / "server.properties"
        self._properties.write_text(
            _PROPERTIES.format(
                broker=self._port,
                controller=controller,
                logs=self.log_dir,
                partitions=self._n_partitions,
            )
            + self._more
        )
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatted = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", self._properties]
        subprocess.run([*self._java, *map(str, formatted)], check=True, stdout=sys.stderr)
        self.start()
        return self

    def start(self) -> None:
        """Start the broker on the log that it has."""
        with (self._folder / "broker.log").open("w") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._properties)], stdout=log, stderr=log
            )
        self.pid = self._process.pid
        try:
            self._wait(self._port)
        except BaseException:
            self.__exit__()
            raise

    def kill(self) -> None:
        """End the broker at once, without a clean stop."""
        self._process.kill()
        self._process.wait()

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
        self.kill()  # its data is not needed any more
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
