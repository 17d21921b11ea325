"""The images of the examples, as far as they can be made without a container."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import goldens
from connector.standalone import build_wheel, standalone_cluster, submit
from versions.environments import ROOT, fresh_environment, interpreter, run_command

pytestmark = pytest.mark.versions

# Runs as `job.py STORE`; the last line of its output is the answer.
JOB = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

def on_executor():
    import rmqstore
    return [sys.executable, rmqstore.__file__]

spark = SparkSession.builder.getOrCreate()
reader = spark.read.format("rmqstore").options(includeSystemTopics="true", minPartitions="4")
frame = reader.load(sys.argv[1])
where = F.udf(on_executor, "array<string>")()
rows = frame.withColumns({"part": F.spark_partition_id(), "where": where}).collect()
answer = {
    "spark": spark.version,
    "messages": sorted([row.topic, row.queueId, row.queueOffset, row.bodyCRC] for row in rows),
    "parts": len({row.part for row in rows}),
    "where": sorted({tuple(row["where"]) for row in rows}),
}
print(json.dumps(answer))
"""


# What a RUN line may have beside: it concerns the users of the image.
_OF_THE_IMAGE = ("useradd", "install")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "_build")


class Image:
    """What the file of an image does, without a container: a folder stands for its root."""

    def __init__(self, file: Path, root: Path) -> None:
        self.root = root
        self.variables: dict[str, str] = {}
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        self.steps = [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]

    def build(self, *tools: Path) -> None:
        path = os.pathsep.join([*map(str, tools), os.environ["PATH"]])
        act: dict[str, Callable[[str], None]] = {
            "COPY": self._copy, "ENV": self._set, "RUN": lambda rest: self._run(rest, path),
        }  # fmt: skip
        for word, rest in self.steps:
            if word in act:
                act[word](rest)

    def inside(self, text: str) -> str:
        return re.sub(r"(?<![\w./])/(?=\w)", f"{self.root}/", text)

    def only(self, word: str) -> str:
        (rest,) = (rest for step, rest in self.steps if step == word)
        return rest

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        if sources[0].startswith("--from="):  # a tool of another image
            return
        for source in (ROOT / name for name in sources):
            into = Path(self.inside(target))
            if source.is_dir():
                shutil.copytree(source, into, dirs_exist_ok=True, ignore=_LEFT_OUT)
                continue
            if target.endswith("/"):
                into /= source.name
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, into)

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        self.variables[name] = self.inside(value)

    def _run(self, rest: str, path: str) -> None:
        for command in rest.split("&&"):
            if not command.split()[0].startswith(_OF_THE_IMAGE):
                run_command("sh", "-ec", self.inside(command), folder=self.root, PATH=path)


def python_of(version: str) -> Path:
    """Return the folder of a Python: uv would fetch one, from where not every machine gets to."""
    found = interpreter(version)
    if found is None:
        pytest.skip(f"not run: no python{version} on PATH and none of pyenv")
    return found.parent


def test_a_cluster_reads_with_what_the_image_for_spark_has(
    golden_store: goldens.Golden, tmp_path: Path
) -> None:
    image = Image(ROOT / "examples" / "cluster" / "Dockerfile", tmp_path / "root")
    image.root.mkdir()
    (tool,) = re.findall(r"/uv:([0-9.]+) AS uv", "\n".join(rest for _, rest in image.steps))
    (minor,) = re.findall(r"--python (3\.\d+) ", image.only("RUN"))
    image.build(fresh_environment("uv", f"uv=={tool}.*").parent, python_of(minor))
    assert not (image.root / "build").exists()
    (packages,) = (image.root / "opt" / "rmqstore").glob("lib/python*/site-packages")
    with zipfile.ZipFile(build_wheel(tmp_path)) as whole:
        lacking = [name for name in whole.namelist() if not (packages / name).exists()]
    assert lacking == []  # a file that is not copied would be
    assert image.variables["PYSPARK_PYTHON"] == str(image.root / "opt" / "rmqstore/bin/python")

    (version,) = re.findall(r"SPARK=apache/spark:([0-9.]+)-scala2\.13-java17", image.only("ARG"))
    spark = fresh_environment("spark-of-the-image", f"pyspark=={version}")
    (home,) = spark.parents[1].glob("lib/python*/site-packages/pyspark")
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    with standalone_cluster(tmp_path, home) as master:
        command = ["spark-submit", "--master", master, "job.py", str(golden_store("basic"))]
        done = submit(command, tmp_path, home, **image.variables)
    assert done.returncode == 0, done.stderr[-4000:]

    answer = json.loads(done.stdout.splitlines()[-1])
    names = ("topic", "queueId", "queueOffset", "bodyCRC")
    expected = [goldens.message(row, "b") for row in goldens.lines("basic", "expected")]
    assert answer["spark"] == version
    assert answer["messages"] == sorted([row[name] for name in names] for row in expected)
    assert answer["parts"] >= 4
    for python, package in answer["where"]:
        assert python == image.variables["PYSPARK_PYTHON"]
        assert package.startswith(str(image.root / "opt" / "rmqstore" / "lib"))


def test_the_image_of_follow_has_what_its_command_needs(tmp_path: Path) -> None:
    image = Image(ROOT / "examples" / "follow" / "Containerfile", tmp_path / "root")
    image.root.mkdir()
    tools = fresh_environment("image-of-follow").parent
    image.build(tools)
    program, *words = json.loads(image.only("ENTRYPOINT"))
    assert "--metrics" in run_command(tools / program, *words, "--help")
    run_command(tools / "python", "-c", "import prometheus_client, rmqstore.replica.cluster")
