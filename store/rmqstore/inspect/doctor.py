"""Checks of this computer: Python, packages, Java, Spark and a store, each with a remedy."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pkgutil import iter_modules
from typing import Final, NamedTuple

from rmqstore.errors import NotAStoreError, RmqStoreError, install, number_of
from rmqstore.storage.broker.broker_run import STATES, state_of
from rmqstore.store.opening import open_for

OK = "ok"
MISSING = "missing"
WRONG = "wrong"

_JAVA: Final = 17  # the least that Spark 4 takes
_WORKERS: Final = "PYSPARK_PYTHON"
_SECONDS: Final = 60  # for another program to answer
_CORE: Final = ("numpy", "pyarrow", "lz4", "zstandard", "mmh3", "orjson", "javaproperties")
# The extra that brings a library, and what that is for.
OPTIONAL: Final = {
    "pyspark": ("spark", "the data source"),
    "rocksdict": ("rocksdb", "queues and an index in RocksDB"),
    "isal": ("fast", "quicker checksums"),
    "crc32c": ("kafka", "kafkalog"),
    "polars": ("polars", "rmqstore.polars"),
    "jinja2": ("report", "rmqstore report"),
    "prometheus-client": ("metrics", "metrics of rmqstore follow"),
}


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        what: its name.
        state: :data:`OK`, :data:`MISSING` for what not everybody needs, or :data:`WRONG`.
        found: what was found.
        cure: what to do; "" if nothing.
    """

    what: str
    state: str
    found: str
    cure: str = ""


def examine(
    path: str | os.PathLike[str] | None = None,
    conf: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Iterator[Check]:
    """Yield checks of this computer, and of a store if one is given.

    Args:
        path: a store, as :func:`rmqstore.open` takes it.
        conf: the properties file of its broker.
        storage_options: how to reach the storage of a URI, as for :func:`rmqstore.open`.
    """
    yield Check("host", OK, socket.gethostname())
    yield Check("Python", OK, f"{sys.version.split()[0]}, {sys.executable}")
    cures = {name: (WRONG, f"pip install {name}") for name in _CORE}
    for name, (extra, purpose) in OPTIONAL.items():
        cures[name] = MISSING, f"{install(extra)}, for {purpose}"
    for name, (state, cure) in cures.items():
        found = _version(name)
        yield Check(name, OK, found) if found else Check(name, state, "-", cure)
    if _version("pyspark"):
        yield _java()
        pythons = list(_pythons_of_spark())
        yield from pythons
        # Spark looks for data sources in these packages: one that fails hides them all.
        modules = {module.name for module in iter_modules()}
        names = sorted(name for name in modules if name.startswith("pyspark_"))
        for name in names:
            try:
                import_module(name)
            except Exception as err:  # noqa: BLE001 - whatever a foreign package does
                found = f"{type(err).__name__}: {err}"
                cure = f"Spark finds no data source: mend or remove {name}"
                yield Check(name, WRONG, found, cure)
        # Spark asks a Python of its own for data sources, not the one that this is.
        without = [python for python in pythons if python.state == WRONG]
        if "pyspark_rmqstore" not in names:
            cure = "spark.dataSource.register(pyspark_rmqstore.DefaultSource)"
            yield Check("format rmqstore", WRONG, "Spark does not find it by itself", cure)
        elif without:
            found = f"Spark does not find it with {without[0].found.partition(':')[0]}"
            yield Check("format rmqstore", WRONG, found, without[0].cure)
        else:
            yield Check("format rmqstore", OK, "Spark finds it")
    if path is not None or conf is not None:
        yield _store(path, conf, storage_options)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _java() -> Check:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return Check("Java", WRONG, "-", f"install Java {_JAVA} or later for Spark")
    answer = _ask([java, "-version"])
    number = re.search(r'version "(\d+)', answer)
    found = f"{number[1]}, {java}" if number else f"{java}: {answer[:200]}"
    if number is None or int(number[1]) < _JAVA:
        cure = f"install Java {_JAVA} or later, and let JAVA_HOME name its folder"
        return Check("Java", WRONG, found, cure)
    return Check("Java", OK, found)


def _pythons_of_spark() -> Iterator[Check]:
    """Check the Python of Spark's workers, and that of its drivers if it is set apart.

    Source: SparkContext of pyspark, which takes python3 from the PATH where nothing is set.
    """
    names = (_WORKERS, "PYSPARK_DRIVER_PYTHON")
    by_name: dict[str, str | None] = {name: os.environ.get(name) for name in names}
    if by_name[_WORKERS] is None:
        by_name = {f"Spark's Python, {_WORKERS} is not set": "python3", **by_name}
    for name, python in by_name.items():
        if python is None:
            continue
        found = shutil.which(python) or python
        answer = _ask([python, "-c", "import pyspark_rmqstore; print('found')"])
        if answer.strip().endswith("found"):
            yield Check(name, OK, found)
        else:
            setting = name if name in os.environ else _WORKERS
            cure = f"export {setting}={sys.executable}, or install this package for {found}"
            last_line = answer.strip().rpartition("\n")[2]
            yield Check(name, WRONG, f"{found}: {last_line[-200:]}", cure)


def _store(
    path: str | os.PathLike[str] | None,
    conf: str | os.PathLike[str] | None,
    storage_options: Mapping[str, object] | None,
) -> Check:
    words = [] if path is None else [os.fspath(path)]
    words += [] if conf is None else ["-c", os.fspath(conf)]
    name = shlex.join(words)
    try:
        with open_for(path, conf=conf, storage_options=storage_options) as store:
            kind = store.parts.kind()
            end = store.parts.ends.log_end
            after = store.parts.ends.after_end
            is_damaged = store.parts.ends.rocksdb_damage is not None
    except (RmqStoreError, OSError) as err:
        cure = f"executors must see it under this path too; this host is {socket.gethostname()}"
        if isinstance(err, NotAStoreError):
            cure = f"name the folder that holds commitlog/; {cure}"
        return Check(name, WRONG, str(err), cure)
    found = "; ".join(kind.lines())
    if is_damaged:
        cure = f"rmqstore verify {name} says what to do; --scan commitlog reads the messages"
        return Check(name, WRONG, found, cure)
    if end is None:
        return Check(name, OK, found)
    found = f"{found}; {STATES[state_of(store.paths)]}"
    if not after.n_records:
        return Check(name, OK, found)
    found = (
        f"{found}, and {number_of(after.n_records, 'record')} of {after.n_bytes} bytes "
        f"{'follows' if after.n_records == 1 else 'follow'} the end of its log, at physical offset "
        f"{end.physical_offset}: {end.reason}"
    )
    cure = (
        "a broker that starts drops them: before that, copy all messages out with rmqstore export "
        f"{name} messages.parquet --scan commitlog --all --ignore-log-end --mode DROPMALFORMED"
    )
    return Check(name, WRONG, found, cure)


def _ask(command: list[str]) -> str:
    """Return what a program prints, or why it does not."""
    try:
        done = subprocess.run(  # noqa: S603 - programs that the user's settings name
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return str(err)
    return done.stdout + done.stderr
