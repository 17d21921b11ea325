"""Judges random stores, in two processes: ``python -m judge N=500 SEED=7``.

A case that breaks a rule is made smaller as long as it breaks the same one, and is printed as a
line of text, which ``CASE=…`` judges again. At the end stands what kinds of stores there were.
``RECORD=FILE`` keeps the original's answers about the cases in the lines of a file, which
``test_corpus.py`` holds our claims against.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from judge.cases import Case
from judge.judging import Judge, Verdict, record
from judge.workers import ORIGINS, judged


def main(arguments: Sequence[str]) -> int:
    given = dict(argument.split("=", 1) for argument in arguments)
    if "CASE" in given or "RECORD" in given:
        with tempfile.TemporaryDirectory() as home, Judge(Path(home), ORIGINS) as judge:
            if "RECORD" in given:
                record(judge, ORIGINS, Path(given["RECORD"]).read_text().splitlines())
                return 0
            verdict = judge.judge(Case.parse(given["CASE"]))
        print(_spelled(verdict))
        return bool(verdict.broken)
    first, count = int(given.get("SEED", "0")), int(given.get("N", "100"))
    started, facts, broken = time.monotonic(), Counter[str](), Counter[str]()
    for verdict in judged(range(first, first + count)):
        facts.update(verdict.facts)
        broken.update(verdict.broken.keys())
        if verdict.broken:
            print(_spelled(verdict), flush=True)
    for fact, number in sorted(facts.items()):
        print(f"{number:6} {fact}")
    an_hour = count * 3600 / (time.monotonic() - started)
    print(f"{count} stores, {an_hour:.0f} an hour; rules that are broken: {dict(broken)}")
    return bool(broken)


def _spelled(verdict: Verdict) -> str:
    lines = [f"{rule}: {text}" for rule, texts in verdict.broken.items() for text in texts]
    return "\n    ".join([verdict.case, *lines])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
