"""The unit of systemd and the container files are what their programs take."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click

import missing
from rmqstore.cli import main
from rmqstore.replica.cluster import settings_of

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "examples" / "follow" / "rmqstore-follow.service"
CONTAINER = ROOT / "examples" / "follow" / "Containerfile"


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the parameters that a command line has; nothing is run."""
    command = main.verb("follow")
    context: click.Context = command.make_context("follow", list(words))
    return context.params


def require_good(words: list[str]) -> None:
    given = parsed(words)
    assert given["namesrv"]
    assert given["target"] is None
    settings_of({"retain": given["retain"], "tables_seconds": given["tables_seconds"]})


def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser["Service"]


def test_the_command_of_the_unit_is_one_of_follow() -> None:
    service = unit()
    program, verb, *words = shlex.split(service["ExecStart"])
    assert (Path(program).name, verb) == ("rmqstore", "follow")
    require_good(words)
    assert parsed(words)["source"] in service["ReadWritePaths"].split()
    assert service["RestartPreventExitStatus"] == "2"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        missing.skip("systemd-analyze", "install systemd", may_lack=True)
    installed = Path(sys.executable).with_name("rmqstore")
    copied = tmp_path / UNIT.name
    text = UNIT.read_text().replace("/opt/rmqstore/bin/rmqstore", str(installed))
    copied.write_text(text.replace("User=rmqstore", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copied)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert told == []
    assert done.returncode == 0, done.stderr


def test_the_container_file_copies_what_there_is_and_runs_follow() -> None:
    steps: dict[str, list[str]] = {}
    text = CONTAINER.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            step, _, rest = line.partition(" ")
            steps.setdefault(step, []).append(rest)
    for copied in steps["COPY"]:
        for source in copied.split()[:-1]:
            assert (ROOT / source).exists(), source
    # The build of a wheel fails without the file of its hooks.
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    hooks = [hatch["build"]["targets"]["wheel"]["hooks"], hatch["metadata"]["hooks"]]
    sources = [source for copied in steps["COPY"] for source in copied.split()[:-1]]
    for hook in hooks:
        path = Path(hook["custom"]["path"])
        assert any(path.is_relative_to(source) for source in sources), path
    assert json.loads(steps["ENTRYPOINT"][0]) == ["rmqstore", "follow"]
    words = json.loads(steps["CMD"][0])
    require_good(words)
    assert parsed(words)["source"] == steps["VOLUME"][0]
    assert parsed(words)["metrics"].endswith(f":{steps['EXPOSE'][0]}")
    assert "[cli,metrics]" in steps["RUN"][0]


def test_the_image_for_a_cluster_is_made_of_what_there_is() -> None:
    """The commands run where there is no container either: in a fresh environment, see cluster."""
    text = (ROOT / "examples" / "cluster" / "Dockerfile").read_text(encoding="utf-8")
    lines = text.replace("\\\n", " ").splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    sources = [name for names in copied for name in names if not name.startswith("--")]
    of_stage = {"/uv"}
    assert {name for name in sources if not (ROOT / name).exists()} == of_stage
    # What the build of the wheel reads, which tests/test_packaging.py tries.
    assert {"pyproject.toml", "README.md", "conf", "docs", "examples", "store"} <= {*sources}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = re.findall(r'"/build\[(\w+)\]"', text)
    assert extra in project["optional-dependencies"]
    (minor,) = re.findall(r"--python 3\.(\d+) ", text)
    assert f">=3.{minor}" >= project["requires-python"]
    manual = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    (python,) = re.findall(r"PYSPARK_PYTHON=(\S+)", text)
    assert f"driverEnv.PYSPARK_PYTHON={python} " in manual
