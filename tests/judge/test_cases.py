"""A case is a line of text, which makes the same store each time."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from judge import cases
from judge.cases import Case, Origins

pytestmark = pytest.mark.medium  # it unpacks stores


def contents(root: Path) -> dict[str, bytes | str]:
    return {
        path.relative_to(root).as_posix(): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in root.rglob("*")
        if not path.is_dir() and path.stat().st_size < 1 << 20
    }


def test_a_seed_gives_a_line_of_text_and_that_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "PROGRAM_SHARE", 0)  # these need a JVM
    origins, n_smaller = Origins(tmp_path), 0
    for seed in range(12):
        case = cases.draw(seed, origins)
        assert Case.parse(str(case)) == case == cases.draw(seed, origins)
        made = []
        for name in ("one", "two"):
            cases.make(case, origins, root := tmp_path / f"{seed}-{name}")
            made.append(contents(root))
        assert made[0] == made[1]
        whole = contents(origins[case.origin].root)
        assert made[0] != whole or not case.faults
        for number, smaller in enumerate(islice(cases.smaller(case), 3)):
            with suppress(FileNotFoundError):  # a state without `abort`, for one
                cases.make(smaller, origins, tmp_path / f"{seed}-smaller-{number}")
                n_smaller += 1
    assert n_smaller > 12
