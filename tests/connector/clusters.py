"""Drivers in processes of their own, whose executors are processes of their own as well."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark

# The beginning of a script that runs as `python -c SCRIPT …`. As `local-cluster` does, the driver
# runs a master and two workers, each with one executor. But the workers are on two hosts, because
# Spark starts a speculative attempt only on another host.
SESSION = """
from pyspark import SparkContext
from pyspark.sql import SparkSession

def session(work, **settings):
    SparkContext._ensure_initialized()
    jvm, gateway = SparkContext._jvm, SparkContext._gateway
    deploy, option = jvm.org.apache.spark.deploy, jvm.scala.Option
    conf = jvm.org.apache.spark.SparkConf().set("spark.ui.enabled", "false")
    for service in ("master.rest", "shuffle.service"):
        conf.set(f"spark.{service}.enabled", "false")
    master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)._1()
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = f"spark://127.0.0.1:{master.address().port()}"
    for number in (1, 2):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            f"127.0.0.{number}", 0, 0, 1, 1024, urls, work, option.apply(number), conf,
            option.empty(),
        )
    builder = SparkSession.builder.master(urls[0]).config("spark.ui.enabled", "false")
    settings |= {
        "driver_memory": "1g", "driver_host": "127.0.0.1", "executor_memory": "1g",
        "cores_max": "2", "scheduler_minRegisteredResourcesRatio": "1.0",
        "scheduler_maxRegisteredResourcesWaitingTime": "60s",
    }
    for name, value in settings.items():
        builder = builder.config("spark." + name.replace("_", "."), value)
    return builder.getOrCreate()
"""


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a driver whose executors work below a folder."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "SPARK_HOME", "SPARK_CONF_DIR")
    }
    return inherited | {  # an installed package needs no PYTHONPATH
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
