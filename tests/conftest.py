"""Fixtures of all tests."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest._code import code
from pyspark.sql import SparkSession

import goldens
from s3_server import S3Server, s3_server

JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
PACKAGES = [Path(__file__).parents[1] / folder for folder in ("store", "connector")]


_internal_errors: list[str] = []
_statement_range = code.getstatementrange_ast


def _statement_range_or_line(*args: Any, **kwargs: Any) -> Any:
    """Let the report of a failure show a line where Python cannot parse the whole statement.

    Python before 3.11.8 and 3.12.2 raises SystemError while finalizers or other threads parse too
    (gh-106905), and pytest would end the run because of it.
    """
    try:
        return _statement_range(*args, **kwargs)
    except SystemError as err:
        raise SyntaxError(str(err)) from err


code.getstatementrange_ast = _statement_range_or_line


def pytest_internalerror(excrepr: object) -> None:
    """Keep what ended the run; xdist fails once more because of it, and tells that last."""
    _internal_errors.append(str(excrepr))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Print the first internal error where the output of a run is read first: at its end."""
    if _internal_errors and not hasattr(config, "workerinput"):
        sys.stderr.write(f"\nThe first internal error:\n{_internal_errors[0][-4000:]}\n")


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """Let a flush in this process return at once: no test cuts the power of this machine.

    Tests of power cuts keep track of unflushed bytes themselves, and ``test_disk.py`` checks that
    each flush reaches the kernel. The replacement refuses a closed descriptor, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session", autouse=True)
def _jvms_that_start_fast() -> Iterator[None]:
    """Let each JVM of Spark compile fast rather than well, for the frames of tests are small."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
            patch.setenv(variable, JVM_OPTIONS)
        yield


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that unpacks a golden store by name, once a session, and returns its root.

    Tests that change the store work on a copy.
    """

    @cache
    def unpacked(name: str) -> Path:
        return goldens.unpack(name, tmp_path_factory.mktemp(f"golden-{name}"))

    return unpacked


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Return an S3 server of this session."""
    pytest.importorskip("moto")
    with s3_server() as server:
        yield server


def _require_java() -> None:
    """Skip the test, with the reason, if there is no Java; fail if nothing may be skipped."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") or (home and Path(home, "bin", "java").exists()):
        return
    reason = "Spark needs Java 17 or later: no `java` on PATH, and JAVA_HOME names none"
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason}; with CI=true nothing is skipped")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def java() -> None:
    """Require Java, for tests that start a Spark of their own."""
    _require_java()


@pytest.fixture(scope="session")
def spark(
    java: None,  # noqa: ARG001 - required first
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    """Return the session, without registering the source: Spark has to find it by itself."""
    with pytest.MonkeyPatch.context() as patch:
        inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        patch.setenv("PYTHONPATH", os.pathsep.join([*map(str, PACKAGES), *inherited]))
        for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            patch.setenv(variable, sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.delenv("SPARK_HOME", raising=False)  # the jars of the installed pyspark, no others
        session = (
            SparkSession.builder.master("local[2]")
            .appName("rmqstore-tests")
            .config("spark.driver.memory", "2g")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "OFF")  # what fails on purpose would fill pages
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        yield session
        session.stop()
