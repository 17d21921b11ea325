"""The storage on a local disk: what it says of names, and bytes of a mapped file by range."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rmqstore.errors import UnreadableFileError
from rmqstore.storage.files.local import LOCAL, lacks_room_for_holes
from rmqstore.storage.files.storage import (
    A_DANGLING_LINK,
    A_FILE,
    A_FOLDER,
    Entry,
    is_folder,
)


def test_a_status_says_what_a_path_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    kinds = {}
    for name in ("", "file", "link", "dangling", "loop", "fifo"):
        status = LOCAL.status(tmp_path / name)
        assert status is not None
        kinds[name] = status.kind
    assert kinds == {
        "": A_FOLDER, "file": A_FILE, "link": A_FILE, "dangling": A_DANGLING_LINK,
        "loop": A_DANGLING_LINK, "fifo": "a FIFO",
    }  # fmt: skip
    status = LOCAL.status(tmp_path / "link")
    assert status is not None
    assert status.size == 5
    assert status.is_file
    assert status.modified_ns == (tmp_path / "file").stat().st_mtime_ns


@pytest.mark.parametrize("name", ["nothing", "file/below", "dangling"])
def test_what_is_not_there_does_not_exist(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nothing")
    assert not LOCAL.exists(tmp_path / name)
    assert not is_folder(LOCAL, tmp_path / name)
    with pytest.raises((FileNotFoundError, UnreadableFileError)):
        LOCAL.size(tmp_path / name)


def test_a_name_of_which_nothing_can_be_known_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="File name too long"):
        LOCAL.exists(tmp_path / ("x" * 256))


def test_a_listing_distinguishes_folders_and_links(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    expected = [
        Entry("file", is_folder=False),
        Entry("folder", is_folder=True),
        Entry("link", True, is_link=True),
    ]
    assert sorted(LOCAL.list_folder(tmp_path)) == expected
    assert LOCAL.list_folder(tmp_path / "nothing") == []


def test_ranges_of_a_mapped_file(tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    (tmp_path / "file").write_bytes(content)
    with LOCAL.open(tmp_path / "file") as file:
        assert file.size == len(content)
        assert file.read(300, 5).tobytes() == content[300:305]
        assert file.read(len(content) - 3, 9).tobytes() == content[-3:]
        starts = np.array([len(content) - 4, 0, 9, 9])
        file.prefetch(starts, 4)
        expected = [content[start : start + 4] for start in starts.tolist()]
        assert [item.tobytes() for item in file.read_each(starts, 4)] == expected
        assert len(file.read_each(starts[:0], 4)) == 0


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
