"""Paths that a task does not see: the error names the host, and nothing is written there."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, StructType

from connector.engine import Engine
from connector.sparkreads import GoldenStore, load
from pyspark_rmqstore import sink as staging
from pyspark_rmqstore.hosts import require_staged
from pyspark_rmqstore.sink import StoreSink
from pyspark_rmqstore.write_options import parse_write_options
from rmqstore.errors import StoreStateError


@pytest.mark.parametrize("options", [{}, {"view": "commitlog"}])
def test_a_task_that_does_not_see_the_store_names_its_host(
    engine: Engine, golden_store: GoldenStore, tmp_path: Path, options: dict[str, str]
) -> None:
    root = tmp_path / "seen-by-the-driver"
    shutil.copytree(golden_store("basic"), root)
    frame = load(engine, root, **options)
    assert frame.plan.partitions  # planned now
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(Exception, match=f"on host {socket.gethostname()}, where an executor runs"):
        frame.count()


def test_rows_that_are_staged_on_another_host_are_refused_by_its_name(tmp_path: Path) -> None:
    options = parse_write_options({"path": str(tmp_path / "store"), "topic": "T"})
    sink = StoreSink(StructType().add("body", BinaryType()), options, patience=1)
    folder = staging.job_folder(options.path, "job")
    with pytest.raises(StoreStateError, match=f"a task on host {socket.gethostname()}"):
        sink.stage(iter(()), folder)
    assert not (tmp_path / "store").exists(), "the driver made no folder"
    with pytest.raises(StoreStateError, match="a task on host worker-7 has staged rows"):
        require_staged(str(tmp_path / "part-0-0-x"), "worker-7")
