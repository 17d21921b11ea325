"""A JVM with the real RocketMQ in it, driven from Python: jars by Spark's package resolution.

`make playground` and the tests with the real RocketMQ share it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

# Python still collects objects of a JVM that was killed, and py4j would log an error for each,
# with a traceback, at any moment of a later test.
logging.getLogger("py4j").setLevel(logging.CRITICAL)

PACKAGES = {
    "5.3.3": (
        "org.apache.rocketmq:rocketmq-broker:5.3.3",
        "org.apache.rocketmq:rocketmq-namesrv:5.3.3",
        "org.apache.rocketmq:rocketmq-client:5.3.3",
    ),
    # the newest store; the other modules of that release were not published
    "5.5.1": ("org.apache.rocketmq:rocketmq-store:5.5.1",),
    **{
        version: (f"org.apache.rocketmq:rocketmq-store:{version}",)
        for version in ("4.2.0", "4.7.1", "4.9.8", "5.1.4", "5.4.0")
    },
    **{  # those that have their brokers published as well
        f"{version}-broker": (
            f"org.apache.rocketmq:rocketmq-broker:{version}",
            f"org.apache.rocketmq:rocketmq-namesrv:{version}",
        )
        for version in ("4.2.0", "4.7.1", "5.1.4", "5.4.0")
    },
    "5.3.3-proxy": ("org.apache.rocketmq:rocketmq-proxy:5.3.3",),
}
# A quarter of the modules, and a sixth of the time that these take. Neither a store nor a broker
# with its default settings loads any of them.
UNUSED = (
    # native code of another name on each system
    "io.netty:netty-tcnative",
    *(f"io.netty:netty-transport-{name}" for name in (
        "native-epoll", "native-kqueue", "sctp", "udt", "rxtx",
    )),
    "io.netty:netty-resolver-dns-classes-macos",
    "io.netty:netty-resolver-dns-native-macos",
    # protocols that RocketMQ does not speak
    *(f"io.netty:netty-codec-{name}" for name in (
        "memcache", "mqtt", "redis", "smtp", "stomp", "xml",
    )),
    "io.netty:netty-handler-ssl-ocsp",
    # a client of HTTP, with which metrics are sent
    "io.opentelemetry:opentelemetry-exporter-sender-okhttp",
    "com.squareup.okhttp3:okhttp",
    "com.squareup.okio:okio",
    *(f"org.jetbrains.kotlin:kotlin-stdlib{name}" for name in ("", "-common", "-jdk8")),
    # annotations, and what only tests call
    "com.google.android:annotations",
    "com.google.code.findbugs:jsr305",
    "com.google.errorprone:error_prone_annotations",
    "com.google.guava:listenablefuture",
    "com.google.j2objc:j2objc-annotations",
    "org.apache.tomcat:annotations-api",
    "org.awaitility:awaitility",
    "org.checkerframework:checker-qual",
    "org.codehaus.mojo:animal-sniffer-annotations",
    "org.hamcrest:hamcrest",
)  # fmt: skip
# Where pyspark is loaded it asks the JVM of Spark, which there may be none of, about each error of
# another JVM, so it is not imported for its folder.
SPARK_HOME = Path(str(find_spec("pyspark").origin)).parent
JAVA_OPTIONS = [
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in (
        "java.nio", "sun.nio.ch", "java.lang", "java.util", "java.net",
    )),
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",  # tests put few messages: code that is compiled fast is enough
    "-Drocketmq.client.rebalance.waitInterval=1000",  # a consumer waits 20 s for its queues else
]  # fmt: skip


class JarsUnavailableError(Exception):
    """The jars could not be had: no network, no repository."""


def resolve_jars(version: str, folder: Path) -> Path:
    """Return the folder with the jars of a version, which is resolved once for all processes."""
    jars = folder / version / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / version / "ready").exists():
            _resolve(version, folder, jars)
    return jars


def _resolve(version: str, folder: Path, jars: Path) -> None:
    """Let Spark's package resolution fetch the jars of a version."""
    nothing = folder / "nothing.py"
    nothing.write_text("")
    environment = {
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # half of the CPU time
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"),
        *("--master", "local[1]", "--packages", ",".join(PACKAGES[version])),
        *("--exclude-packages", ",".join(UNUSED)),
        *(
            "--conf",
            f"spark.jars.ivy={folder / version}",
            "--conf",
            "spark.ui.enabled=false",
            str(nothing),
        ),
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode or not list(jars.glob("*rocketmq-store*")):
        raise JarsUnavailableError(
            f"RocketMQ {version} could not be resolved: {done.stderr[-2000:]}"
        )
    (folder / version / "ready").touch()


def start_jvm(
    jars: Path, home: Path, log: IO[str], options: list[str] = JAVA_OPTIONS, *, apart: bool = False
) -> tuple[JavaGateway, Any]:
    """Start a JVM that ends with this process; return the way into it, and its process.

    Args:
        jars: the folder with the jars of a version.
        home: the folder for what RocketMQ logs.
        log: the file for what the JVM prints.
        options: those of the JVM.
        apart: whether Ctrl-C in a terminal does not reach the JVM.
    """
    port, token, process = launch_gateway(
        jarpath=str(next((SPARK_HOME / "jars").glob("py4j-*.jar"))),
        classpath=f"{jars}/*",
        javaopts=[*options, f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}"],
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
        redirect_stdout=log,
        redirect_stderr=log,
        create_new_process_group=apart,
        java_path=str(Path(os.environ["JAVA_HOME"], "bin", "java"))
        if os.environ.get("JAVA_HOME")
        else "java",
    )
    parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
    return JavaGateway(gateway_parameters=parameters), process
