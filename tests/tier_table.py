"""Makes ``tiers.toml`` from the times of a run, and prints where the time goes.

    python -m pytest -m "not slow and not versions" --times=FOLDER
    python tests/tier_table.py FOLDER

Tests that need a JVM or a browser are not listed: `tiers.py` says which of them a tier runs.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import tiers

HEAD = """\
# Seconds that all cases of a test take, by file; of a test that is not listed they take less than
# 1.2 seconds. Made by `make tiers`: see tests/tier_table.py, and tests/tiers.py for what follows.
"""
LEAST_SECONDS = 1.2


def main() -> None:
    by_test: Counter[tuple[str, str]] = Counter()
    by_file: Counter[str] = Counter()
    by_mark: Counter[str] = Counter()
    for times in Path(sys.argv[1]).glob("*.jsonl"):
        for line in times.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            file, _, test = tiers.name_of(row["case"]).partition("::")
            kind = next((name for name in tiers.HEAVY if name in row["marks"]), "without a JVM")
            by_file[file] += row["seconds"]
            by_mark[kind] += row["seconds"]
            if kind == "without a JVM":
                by_test[file, test] += row["seconds"]
    listed: dict[str, dict[str, float]] = defaultdict(dict)
    for (file, test), seconds in sorted(by_test.items()):
        if seconds >= LEAST_SECONDS:
            listed[file][test] = round(seconds, 1)
    lines = [
        f"{json.dumps(file)} = {{ {', '.join(f'{test} = {n}' for test, n in tests.items())} }}\n"
        for file, tests in listed.items()
    ]
    tiers.TABLE.write_text("".join([HEAD, "\n", *lines]), encoding="utf-8")
    for name, time in [*by_mark.most_common(), *by_file.most_common(40)]:
        sys.stdout.write(f"{time:8.1f} s  {name}\n")


if __name__ == "__main__":
    main()
