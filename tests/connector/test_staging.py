"""Staging in a store with hostile links: no file is written or removed outside the store."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_rmqstore.sink import begin, job_folder, sweep
from rmqstore.errors import StoreStateError

LONG_AGO = 1_000_000_000


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder with a folder that is old enough to be swept."""
    folder = tmp_path / "outside"
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "precious").write_text("precious")
    for path in (folder / "old" / "precious", folder / "old", folder):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


def is_whole(outside: Path) -> bool:
    return (outside / "old" / "precious").read_text() == "precious" and len(
        list(outside.iterdir())
    ) == 1


@pytest.mark.parametrize("name", [".rmqstore", ".rmqstore/staging"])
def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path, outside: Path, name: str) -> None:
    root = tmp_path / "s"
    (root / name).parent.mkdir(parents=True)
    (root / name).symlink_to(outside)
    for action in (begin, sweep):
        with pytest.raises(StoreStateError, match="symbolic link"):
            action(str(root), "job")
    assert is_whole(outside)


def test_the_sweep_deletes_links_and_not_what_they_point_at(tmp_path: Path, outside: Path) -> None:
    root = str(tmp_path / "s")
    begin(root, "first")
    link, old = job_folder(root, "link"), job_folder(root, "old")
    link.symlink_to(outside)
    os.utime(link, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    old.mkdir()
    (old / "inner").symlink_to(outside)
    os.utime(old / "inner", (LONG_AGO, LONG_AGO), follow_symlinks=False)
    os.utime(old, (LONG_AGO, LONG_AGO))
    begin(root, "second")
    assert sorted(path.name for path in link.parent.iterdir()) == ["first", "second"]
    job_folder(root, "third").symlink_to(outside)
    for job in ("first", "second", "third"):
        sweep(root, job)
    assert not (tmp_path / "s" / ".rmqstore").exists()
    assert is_whole(outside)


def test_jobs_that_begin_and_end_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """The end of one removes the folders above its own if they are empty."""

    def jobs(number: int) -> None:
        for turn in range(200):
            job_id = f"job{number}-{turn}"
            begin(str(tmp_path), job_id)
            (job_folder(str(tmp_path), job_id) / "part").write_bytes(b"x")
            sweep(str(tmp_path), job_id)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(jobs, range(3)))
    assert not (tmp_path / ".rmqstore").exists()


def test_a_job_that_still_writes_is_not_swept(tmp_path: Path) -> None:
    """To write into a file does not change the time of its folder."""
    root = str(tmp_path / "s")
    begin(root, "long")
    part = job_folder(root, "long") / "part-0"
    part.write_bytes(b"x")
    os.utime(part.parent, (LONG_AGO, LONG_AGO))
    begin(root, "second")
    assert part.exists()
    os.utime(part, (LONG_AGO, LONG_AGO))
    os.utime(part.parent, (LONG_AGO, LONG_AGO))
    begin(root, "third")
    assert not part.exists()
