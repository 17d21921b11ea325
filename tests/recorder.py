"""Records what reads give, so that a change of how reads are planned can be compared with before.

    python tests/recorder.py record BEFORE.jsonl.gz     # about ten minutes, on one core
    python tests/recorder.py record AFTER.jsonl.gz      # with the changed code
    python tests/recorder.py compare BEFORE.jsonl.gz AFTER.jsonl.gz

It is no test: nothing says that what is recorded is right, only that it is the same. The exit code
of ``compare`` is 1 if something is not. The summary at its end counts the parts that differ, and
``--parts rows,error`` compares these alone: ``rows`` are those of a whole read in any order, and
``order`` is their order, which changes where tasks are cut elsewhere.

``record --store basic --store live`` records these stores, ``--limit-pairs`` sets how many pairs of
options each store has, and ``--sample 2/10`` takes the second tenth of all cases, always the same
one. A record of some cases compares with one of all.

The cases are those of ``recorder_cases.py``: each golden store and some that are made of them, by
each option of reads, by a sample of pairs of options and by filters, in Spark's steps for a batch
and for a stream, and in Python. ``recorder_reads.py`` has what is recorded of each. The code that
reads is that of PYTHONPATH: folders ``store`` and ``connector`` of a checkout, maybe another one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import goldens
import rmqstore
from recorder_cases import Case, cases_of, facts_of, is_in_share, places, require_every_option
from recorder_reads import Outcome, Recorder

Record = dict[str, Outcome]
Difference = tuple[str, Any, Any]  # the part that differs, as it was, as it is
_PAIRS = 12
_SHOWN = 300  # characters of a value, from a little before the first difference on
_ALONE = ("only in one record", None, None)


def record(arguments: argparse.Namespace) -> int:
    require_every_option()
    logging.getLogger("py4j").setLevel(logging.ERROR)
    warnings.simplefilter("error")  # as in tests
    warnings.simplefilter("ignore", ResourceWarning)
    share, of = (int(number) for number in arguments.sample.split("/"))
    names = arguments.store or sorted(places())
    _say(f"of the code in {Path(rmqstore.__file__).parents[2]}")
    started, total = time.monotonic(), 0
    foreign: dict[tuple[str, str], str] = {}
    with gzip.GzipFile(arguments.out, "w", compresslevel=6, mtime=0) as file:
        header = {"places": names, "sample": arguments.sample, "pairs": arguments.limit_pairs}
        file.write(_line(header))
        for number, name in enumerate(names, 1):
            count = 0
            for key, outcome in _outcomes(name, arguments.limit_pairs, (share, of)):
                file.write(_line({"key": key, "outcome": outcome}))
                count += 1
                for error in _errors(outcome):
                    if "isForeign" in error:
                        foreign.setdefault((error["class"], error["text"][:120]), key)
            total += count
            spent = f"{time.monotonic() - started:.0f} s, {time.process_time():.0f} s of the CPU"
            _say(f"{number}/{len(names)} {name}: {count} cases, {spent} so far")
    _say(f"{total} cases")
    for (kind, text), key in foreign.items():
        _say(f"no error of rmqstore: {kind}: {text}\n    in {key}")
    return 0


def _outcomes(name: str, most_pairs: int, share: tuple[int, int]) -> Iterator[tuple[str, Outcome]]:
    """Yield the cases of a place that are in a share, each once and with its outcome."""
    place = places()[name]
    facts = facts_of(place, "STORE", "BESIDE")
    cases: dict[str, Case] = {}
    for case in cases_of(name, most_pairs):
        key = case.key(facts)
        if is_in_share(key, *share):
            cases.setdefault(key, case)
    if not cases:
        return
    with tempfile.TemporaryDirectory(prefix="recorder-") as base:
        folder, beside = Path(base, "stores"), Path(base, "beside")
        beside.mkdir()
        for golden in place.golden:
            goldens.unpack(golden, folder)
        root = folder / place.golden[0]
        place.change(root)
        conf = f"storePathRootDir={root}\nbrokerName=named-by-conf\n"
        (beside / "broker.conf").write_text(conf, encoding="utf-8")
        recorder = Recorder(place, facts_of(place, folder, beside))
        for key, case in cases.items():
            yield key, recorder.run(case)


def _line(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _errors(outcome: Outcome) -> Iterator[Outcome]:
    for part in (outcome, *outcome.get("tasks", ())):
        if "error" in part:
            yield part["error"]


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def compare(arguments: argparse.Namespace) -> int:
    """Print each difference of two records, and how many there are of each part."""
    (before_of, before), (after_of, after) = map(_read, (arguments.before, arguments.after))
    parts = arguments.parts.split(",") if arguments.parts else None
    counts: Counter[str] = Counter()
    n_different = 0
    for key in sorted(before.keys() | after.keys()):
        if key in before and key in after:
            found = differences(before[key], after[key])
        else:
            found = [_ALONE] if before_of == after_of else []
        found = [one for one in found if parts is None or one[0] in parts]
        n_different += bool(found)
        counts.update(part for part, _, _ in found)
        if found:
            sys.stdout.write(f"{key}\n")
        for part, old, new in found:
            shown = "" if part == _ALONE[0] else f"\n    - {_cut(old, new)}\n    + {_cut(new, old)}"
            sys.stdout.write(f"  {part}{shown}\n")
    for part, count in sorted(counts.items(), key=lambda item: -item[1]):
        sys.stdout.write(f"{count:6} {part}\n")
    n_both = len(before.keys() & after.keys())
    sys.stdout.write(f"{n_different} of {n_both} cases differ")
    n_alone = len(before.keys() ^ after.keys())
    sys.stdout.write(f"; {n_alone} are in one record only\n" if n_alone else "\n")
    return int(n_different > 0)


def differences(before: Outcome, after: Outcome) -> list[Difference]:
    """Return the parts of two outcomes that differ; of several tasks the first that differ."""
    found = [
        (part, before.get(part), after.get(part))
        for part in sorted((before.keys() | after.keys()) - {"tasks"})
        if before.get(part) != after.get(part)
    ]
    old, new = before.get("tasks", []), after.get("tasks", [])
    if len(old) != len(new):
        found.append(("number of tasks", len(old), len(new)))
    seen: dict[str, Difference] = {}
    for one, other in zip(old, new, strict=False):
        for part in sorted(one.keys() | other.keys()):
            if one.get(part) != other.get(part):
                seen.setdefault(part, (f"task {part}", one.get(part), other.get(part)))
    return found + list(seen.values())


def _read(path: Path) -> tuple[Outcome, Record]:
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="surrogatepass") as file:
            header = json.loads(next(file))
            return header, {row["key"]: row["outcome"] for row in map(json.loads, file)}
    except EOFError:
        sys.exit(f"{path} is not whole, its recording was ended: record again")


def _cut(value: Any, other: Any) -> str:
    """Return a value as text, if it is long from a little before where another one differs."""
    text, against = (json.dumps(one, ensure_ascii=False, sort_keys=True) for one in (value, other))
    pairs = enumerate(zip_longest(text, against))
    at = next((number for number, (one, two) in pairs if one != two), 0)
    start = max(0, at - _SHOWN // 4) if len(text) > _SHOWN else 0
    return ("…" if start else "") + text[start : start + _SHOWN]


def main() -> int:
    parser = argparse.ArgumentParser(description="record what reads give, and compare")
    verbs = parser.add_subparsers(required=True)
    recording = verbs.add_parser("record", help="write a record of what the code gives")
    recording.add_argument("out", type=Path)
    recording.add_argument("--store", action="append", help="one of them; by default all")
    recording.add_argument("--limit-pairs", type=int, default=_PAIRS, help="of options, a store")
    recording.add_argument("--sample", default="1/1", help="a share K/N of the cases")
    recording.set_defaults(run=record)
    comparing = verbs.add_parser("compare", help="print how two records differ")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--parts", help="compare only these parts, such as rows,error")
    comparing.set_defaults(run=compare)
    arguments = parser.parse_args()
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
