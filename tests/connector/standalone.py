"""A Spark standalone cluster on this machine: a master and two workers, each a process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from connector.clusters import environment

SPARK_HOME = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.2", "127.0.0.3")  # of the workers
_DEPLOY = "org.apache.spark.deploy"
_START_SECONDS = 60
_DAEMON_MEMORY, _EXECUTOR_MEMORY = "256m", "512m"
# Code that is compiled fast is enough, since all of these processes are short.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def standalone_cluster(folder: Path, home: Path = SPARK_HOME) -> Iterator[str]:
    """Start a cluster of a Spark that works below a folder; yield the URL of its master."""
    with ExitStack() as stack:
        log = stack.enter_context(
            _daemon(
                home, folder, "127.0.0.1", "master.Master", "--host", "127.0.0.1", "--port", "0"
            )
        )
        url = _wait_for(log, r"Starting Spark master at (spark://\S+)")
        for host in HOSTS:
            log = stack.enter_context(
                _daemon(
                    home, folder, host, "worker.Worker", "--host", host, "--cores", "1",
                    "--memory", _EXECUTOR_MEMORY, "--work-dir", str(folder / host), url,
                )
            )  # fmt: skip
            _wait_for(log, r"(Successfully registered) with master")
        yield url


@contextmanager
def _daemon(home: Path, folder: Path, host: str, name: str, *arguments: str) -> Iterator[Path]:
    """Run a daemon of Spark until the block is left; yield the file with its log."""
    log = folder / f"{name}-{host}.log"
    command = [str(home / "bin" / "spark-class"), f"{_DEPLOY}.{name}", *arguments]
    variables = environment(folder) | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": f"{_JAVA_OPTIONS} -Dspark.master.rest.enabled=false "
        "-Dspark.master.ui.port=0 -Dspark.worker.ui.port=0 -Dspark.shuffle.service.enabled=false",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=variables, start_new_session=True
        )
    try:
        yield log
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):  # a worker's executors are of its group
            try:
                os.killpg(process.pid, sign)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _wait_for(log: Path, pattern: str) -> str:
    until = time.monotonic() + _START_SECONDS
    while not (found := re.search(pattern, log.read_text(errors="replace"))):
        assert time.monotonic() < until, log.read_text(errors="replace")[-4000:]
        time.sleep(0.1)
    return found[1]


def make_environment(folder: Path, wheel: Path | None) -> Path:
    """Make a virtual environment with what the package needs, and with itself if a wheel is given.

    It lacks pyspark, which Spark brings.
    """
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    installed = Path(sysconfig.get_paths()["purelib"])
    for path in installed.iterdir():
        is_left_out = path.name.startswith(("pyspark", "rmqstore")) or path.suffix == ".pth"
        if not is_left_out and not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    if wheel is not None:
        shutil.unpack_archive(wheel, packages, "zip")
    return folder


def pack(folder: Path, archive: Path) -> Path:
    """Pack an environment as venv-pack does: its files at the top of the archive."""
    with tarfile.open(archive, "w:gz") as packed:
        for path in sorted(folder.iterdir()):
            packed.add(path, path.name)
    return archive


def submit(
    command: list[str], folder: Path, home: Path = SPARK_HOME, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``spark-submit …`` in a folder with the limits of the cluster's executors."""
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.driver.memory": "512m",
        "spark.executor.memory": _EXECUTOR_MEMORY, "spark.executor.cores": "1",
        "spark.ui.enabled": "false", "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.sql.session.timeZone": "UTC", "spark.task.maxFailures": "1",
        "spark.driver.defaultJavaOptions": _JAVA_OPTIONS,
        "spark.executor.defaultJavaOptions": _JAVA_OPTIONS,
    }  # fmt: skip
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    inherited = environment(folder) | {"SPARK_HOME": str(home)}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        del inherited[name]
    return subprocess.run(
        [str(home / "bin" / command[0]), *given, *command[1:]],
        cwd=folder, env=inherited | variables, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


def build_wheel(folder: Path) -> Path:
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=root, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel
