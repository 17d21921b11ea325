"""Fixtures of all tests."""

from __future__ import annotations

# isort: off
import simulated  # first: it may take away what another system lacks
import wings  # and this one parts of the packages

# isort: on
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from _pytest._code import code
from _pytest.terminal import TerminalReporter
from pyspark.sql import SparkSession

import goldens
import kafka_logs
import missing
import tiers
from connector.engine import Engine
from reading import differing_columns
from s3_server import S3Server, s3_server

# Hundreds of processes import the packages: Python compiles them once, also where it is told to
# write no bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

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


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Name the columns that differ where tables of rows do."""
    columns = differing_columns(left, right) if op == "==" else []
    return ["two tables of rows are equal", *columns] if columns else None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what is not for this system, and tests of wings that are gone: it cannot import."""
    if wings.is_of_wing(collection_path):
        return True
    folders = (Path(__file__).parent / name for name in simulated.folders_left_out())
    return any(collection_path.is_relative_to(folder) for folder in folders) or None


def pytest_report_header() -> list[str]:
    """Name the seed at the head of a run, so that it can be repeated, and what is left out."""
    left_out = simulated.folders_left_out().items()
    return [
        f"SEED={tiers.FIRST_SEED}",
        *(f"left out on {simulated.SYSTEM}: tests/{folder}: {why}" for folder, why in left_out),
    ]


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say at the end what did not run here, and how to get it."""
    missing.summarize(terminalreporter)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give cases their tiers, and let one worker begin with all that shares a JVM or a browser.

    Tests with the real RocketMQ mostly wait: those that ``make test`` leaves out are shared out by
    file, and each worker has a JVM of its own.
    """
    config.stash[tiers.STALE] = tiers.mark(items)
    wings.take_out(items)
    is_all = not any("::" in argument for argument in config.args)
    simulated.skip_what_does_not_hold(items, is_all=is_all)
    for item in items:
        kind = next((name for name in tiers.HEAVY if item.get_closest_marker(name)), None)
        if kind == "interop" and item.get_closest_marker("thorough"):
            kind = item.path.stem
        if kind is not None:
            item.add_marker(pytest.mark.xdist_group(kind))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, help="a folder for the time that each case takes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the time of a case with its fixtures, if that is asked for; see ``tier_table.py``."""
    started = perf_counter()
    try:
        return (yield)
    finally:
        folder = item.config.getoption("--times")
        if folder is not None:
            with (folder / f"{os.getpid()}.jsonl").open("a") as file:
                marks = sorted({mark.name for mark in item.iter_markers()})
                group = item.get_closest_marker("xdist_group")  # pytest-xdist appends its name
                case = item.nodeid.removesuffix(f"@{group.args[0]}" if group else "")
                row = {"case": case, "seconds": perf_counter() - started, "marks": marks}
                file.write(json.dumps(row) + "\n")


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
def live(golden_store: goldens.Golden) -> Path:
    """Return the golden store of that name, in which there is something of everything."""
    return golden_store("live")


@pytest.fixture
def copied(golden_store: goldens.Golden, tmp_path: Path) -> goldens.Golden:
    """Return a function that copies a golden store by name, for this test, and returns its root."""
    return lambda name: Path(shutil.copytree(golden_store(name), tmp_path / name))


@pytest.fixture(scope="session")
def kafka_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what ``golden_store`` does, for the log directories that Kafka's brokers wrote."""

    @cache
    def unpacked(name: str) -> Path:
        return kafka_logs.unpack(name, tmp_path_factory.mktemp(f"kafka-{name}"))

    return unpacked


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Return an S3 server of this session."""
    pytest.importorskip("moto")
    with s3_server() as server:
        yield server


@pytest.fixture
def engine() -> Engine:
    """Return what runs the data sources as Spark does, in this process and without a JVM."""
    return Engine()


@pytest.fixture(scope="session")
def java() -> None:
    """Require Java, for tests that start a Spark of their own."""
    missing.require_java()


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
            .config("spark.sql.shuffle.partitions", "1")
            # The frames are small: what would be compiled is run once.
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.sql.streaming.pollingDelay", "1ms")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        yield session
        session.stop()
