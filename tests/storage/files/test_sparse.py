"""Holes of a file that is mapped: on a disk they cost nothing, in memory they take room."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rmqstore.storage.files.local import lacks_room_for_holes


def test_holes_lack_room_in_memory_and_not_on_a_disk(tmp_path: Path) -> None:
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind == "tmpfs":
        pytest.skip("the folder of tests is in memory itself")
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)  # more than any machine of ours has free
    on_disk = os.open(path, os.O_RDONLY)
    in_memory = os.memfd_create("sparse")
    os.truncate(in_memory, 1 << 40)
    try:
        assert not lacks_room_for_holes(on_disk)
        assert lacks_room_for_holes(in_memory)
        os.truncate(in_memory, 0)
        assert not lacks_room_for_holes(in_memory)
    finally:
        os.close(on_disk)
        os.close(in_memory)
