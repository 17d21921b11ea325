"""Judges one case: what the original does with its store beside what we say of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

from judge.claims import claims
from judge.rules import RULES

import rmqstore
from judge import cases, programs
from judge.cases import Case, Origin, Origins
from judge.original import Answer, Asked, Original

_KEYS = 12  # that are looked up in a store


class Verdict(NamedTuple):
    """What came of a case.

    Attributes:
        broken: the rules that are broken, and by which claims.
        facts: what kind of case it was, and what the original did with it.
    """

    case: str
    broken: dict[str, list[str]]
    facts: tuple[str, ...] = ()
    seconds: float = 0


class Whole(NamedTuple):
    """What is known of an origin before its store is broken."""

    asked: Asked
    answer: Answer


class Judge:
    """The real RocketMQ in all versions that are needed, and the stores that cases begin with.

    Args:
        home: a folder for everything that is made for a case.
        folder: keeps the origins.
    """

    def __init__(self, home: Path, folder: Path) -> None:
        self._home = home
        self._writer = programs.Writer(home)
        self._originals: dict[str, Original] = {}
        self.origins = Origins(folder, self._writer)
        self._wholes: dict[str, Whole] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        for original in self._originals.values():
            original.__exit__()

    def judge(self, case: Case) -> Verdict:
        """Return what comes of a case; its store is asked about by both sides at the same time."""
        started = time.monotonic()
        with programs.new_folder(self._home) as folder, ThreadPoolExecutor(1) as thread:
            origin = cases.make(case, self.origins, folder / "store")
            cases.make(case, self.origins, folder / "original")
            whole = self._whole(origin)
            answering = thread.submit(self._answer, folder / "original", origin, whole.asked)
            said = claims(
                folder / "store", origin.options, origin.root, whole.asked.keys, folder / "copies"
            )
            answer = answering.result()
            asked = whole.asked._replace(again=False)
            after = {
                name: self._answer(Path(path), origin, asked)
                for name, path in said["copies"].items()
            }
        broken = {rule.__name__: list(rule(said, answer, after)) for rule in RULES}
        return Verdict(
            str(case),
            {name: texts for name, texts in broken.items() if texts},
            tuple(_facts(case, answer, whole.answer)),
            time.monotonic() - started,
        )

    def _answer(self, root: Path, origin: Origin, asked: Asked) -> Answer:
        if origin.version not in self._originals:
            self._originals[origin.version] = Original(self._home, origin.version)
        return self._originals[origin.version].answer(root, origin.settings, asked)

    def _whole(self, origin: Origin) -> Whole:
        """Return what is known of an origin; of a program only while it is judged."""
        if origin.name not in self._wholes:
            self._wholes = {
                name: known for name, known in self._wholes.items() if "prog" not in name
            }
            asked = _asked(origin)
            with programs.new_folder(self._home) as folder:
                cases.copy(origin.root, folder / "store")
                answer = self._answer(folder / "store", origin, asked._replace(again=False))
            self._wholes[origin.name] = Whole(asked, answer)
        return self._wholes[origin.name]


def _asked(origin: Origin) -> Asked:
    """Return keys of an origin, from its begin to its end, and its queues."""
    columns = ["topic", "queueId", "keys", "msgId"]
    with rmqstore.open(origin.root, **cases.located(origin.options, origin.root)) as store:
        rows = store.scan(columns=columns, include_system_topics=True).read_all().to_pylist()
    keys = [(row["topic"], key) for row in rows for key in (row["keys"] or "").split()]
    keys += [(row["topic"], row["msgId"]) for row in rows]
    queues = sorted({(row["topic"], row["queueId"]) for row in rows})
    return Asked(tuple(keys[:: len(keys) // _KEYS + 1]), tuple(queues))


def _facts(case: Case, answer: Answer, whole: Answer) -> Iterator[str]:
    """Yield what the distribution counts."""
    kind = case.origin.partition("/")[0]
    yield f"origin {kind if kind == 'program' else case.origin}"
    yield f"state {case.state}"
    yield f"faults {len(case.faults)}"
    yield from (f"damage {fault.damage.partition('=')[0]}" for fault in case.faults)
    if not answer["starts"]:
        yield "original refuses"
    elif not whole["starts"]:
        yield "original starts though not with the whole store"
    else:
        if answer["log"][1] < whole["log"][1]:
            yield "original truncates"
        lost = {(queue, tuple(row)) for queue, rows in whole["served"].items() for row in rows} - {
            (queue, tuple(row)) for queue, rows in answer["served"].items() for row in rows
        }
        yield "original loses" if lost else "original serves all"
