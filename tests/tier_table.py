"""Makes ``tiers.toml`` from the times of a run, and prints where the time goes.

    python -m pytest -m "not slow and not versions" --times=FOLDER
    python tests/tier_table.py FOLDER

A fast tier runs the cheap cases of each test, at least one of each test that is not long as a
whole. Tests that need a JVM or a browser are not listed: `tiers.py` says which of them it runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import tiers

ROOT = Path(__file__).parents[1]
HEAD = """\
# Which cases of a test the fast tiers run, by their numbers in the order of collection; all of a
# test that is not listed. Made by `make tiers`: see tests/tier_table.py.
"""


class Limits(NamedTuple):
    """Seconds that a tier has."""

    case: float  # for each case but the cheapest one
    test: float  # for all cases of a test
    cheapest: float  # for the cheapest case of a test


LIMITS = {"test": Limits(0.12, 0.6, 2.0), "test-core": Limits(0.02, 0.08, 0.1)}


def read_times(folder: Path) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Return the seconds and the markers of each case."""
    seconds: dict[str, float] = {}
    marks: dict[str, list[str]] = {}
    for file in folder.glob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            case = row["case"]
            seconds[case] = min(row["seconds"], seconds.get(case, row["seconds"]))
            marks[case] = row["marks"]
    return seconds, marks


def collected() -> dict[str, list[str]]:
    """Return all cases of each test in the order of collection, those of the slow tier too."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not versions"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        if "::" in line:
            found[tiers.name_of(line)].append(line)
    return found


def kept(cases: list[str], seconds: dict[str, float], limits: Limits) -> list[int]:
    """Return the numbers of the cases that a tier runs."""
    known = sorted((seconds[case], number) for number, case in enumerate(cases) if case in seconds)
    chosen: list[int] = []
    spent = 0.0
    for at, (time, number) in enumerate(known):
        limit = limits.case if at else limits.cheapest
        if time > limit or (at and spent + time > limits.test):
            break
        spent += time
        chosen.append(number)
    return sorted(chosen)


def main() -> None:
    seconds, marks = read_times(Path(sys.argv[1]))
    tests = sorted(collected().items())
    lines = [HEAD]
    for tier, limits in LIMITS.items():
        lines.append(f"\n[{tier}]\n")
        for test, cases in tests:
            timed = [case for case in cases if case in seconds]
            is_heavy = any(name in tiers.HEAVY for case in timed for name in marks[case])
            if is_heavy or not timed:
                continue
            numbers = kept(cases, seconds, limits)
            if len(numbers) < len(timed):
                lines.append(f"{json.dumps(test)} = {numbers}\n")
    tiers.TABLE.write_text("".join(lines), encoding="utf-8")
    by_file: Counter[str] = Counter()
    by_mark: Counter[str] = Counter()
    for case, time in seconds.items():
        by_file[case.partition("::")[0]] += time
        kind = next((name for name in tiers.HEAVY if name in marks[case]), "without a JVM")
        by_mark[kind] += time
    for name, time in [*by_mark.most_common(), *by_file.most_common(40)]:
        sys.stdout.write(f"{time:8.1f} s  {name}\n")


if __name__ == "__main__":
    main()
