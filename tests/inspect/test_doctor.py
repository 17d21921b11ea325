"""What doctor finds on a computer, and the cures that it names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from command_line import rows, run
from goldens import Golden
from rmqstore.inspect import doctor
from rmqstore.inspect.doctor import MISSING, OK, WRONG, Check, examine


def found(name: str, path: Path | None = None) -> Check:
    return {check.what: check for check in examine(path)}[name]


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


LACKS = "echo \"No module named 'pyspark_rmqstore'\" >&2; exit 1"  # as a Python without it


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)


def test_a_computer_that_runs_the_tests_is_well(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    checks = {check.what: check for check in examine(live)}
    assert {check.state for check in checks.values()} == {OK}
    assert checks["Python"].found.endswith(sys.executable)
    assert checks[str(live)].found == "CommitLog, queues in files, RocketMQ 5.0 or later"
    assert [row["what"] for row in rows("doctor", live)] == list(checks)


def test_what_is_not_a_store_is_wrong(tmp_path: Path) -> None:
    check = found(str(tmp_path), tmp_path)
    assert check.state == WRONG
    assert "is not a RocketMQ store" in check.found
    assert check.cure.startswith("name the folder that holds commitlog/; executors must see it")
    assert run("doctor", tmp_path).exit_code == 2


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("echo 'openjdk version \"21.0.1\" 2023-10-17' >&2", OK),
        ("echo 'openjdk version \"1.8.0_392\"' >&2", WRONG),
        ("echo 'The operation could not be completed'; exit 1", WRONG),
    ],
)
def test_the_java_of_java_home_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, state: str
) -> None:
    program(tmp_path / "bin" / "java", text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert found("Java").state == state
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert found("Java").state == WRONG
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert found("Java") == Check("Java", WRONG, "-", "install Java 17 or later for Spark")


def test_the_python_of_workers_needs_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert found("PYSPARK_PYTHON").state == OK
    other = program(tmp_path / "python", LACKS)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    check = found("PYSPARK_PYTHON")
    assert check.state == WRONG
    assert "No module named" in check.found
    assert sys.executable in check.cure


def test_without_a_setting_the_python3_on_the_path_is_what_spark_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "Spark's Python, PYSPARK_PYTHON is not set"
    python = program(tmp_path / "python3", LACKS)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    check = found(name)
    assert (check.state, check.found.partition(":")[0]) == (WRONG, str(python))
    assert check.cure.startswith(f"export PYSPARK_PYTHON={sys.executable}, or install")
    program(tmp_path / "python3", f'exec {sys.executable} "$@"')
    assert found(name).state == OK


def test_a_broken_package_that_hides_all_sources_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    check = found("pyspark_broken")
    assert (check.state, check.found) == (WRONG, "RuntimeError: no licence")
    assert "Spark finds no data source" in check.cure


def test_missing_packages_have_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name in ("lz4", "isal") else "1")
    assert found("lz4") == Check("lz4", WRONG, "-", "pip install lz4")
    cure = "pip install 'pyspark-rmqstore[fast]', for quicker checksums"
    assert found("isal") == Check("isal", MISSING, "-", cure)


def test_a_path_that_is_missing_is_called_missing(tmp_path: Path) -> None:
    *_, check = examine(tmp_path / "none")
    assert check.state == "wrong"
    assert f"there is no folder {tmp_path / 'none'}" in check.found


def test_spark_finds_nothing_with_a_python_that_lacks_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program(tmp_path / "python", LACKS)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    check = found("format rmqstore")
    assert (check.state, check.found) == (WRONG, f"Spark does not find it with {python}")
    assert check.cure == found("PYSPARK_PYTHON").cure


@pytest.mark.parametrize(("name", "state"), [("crash", OK), ("crash2", WRONG)])
def test_what_follows_the_end_of_a_log_is_named(
    golden_store: Golden, name: str, state: str
) -> None:
    root = golden_store(name)
    check = found(str(root), root)
    assert check.state == state
    assert "the store was not closed" in check.found
    if state == WRONG:
        assert "54 records of 19337 bytes follow the end of its log" in check.found
        assert f"rmqstore export {root} messages.parquet --scan commitlog" in check.cure
