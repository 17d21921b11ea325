"""Judges one case: what the original does with its store beside what we say of it."""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

import goldens
import rmqstore
from judge import cases, programs
from judge.cases import Case, Origin, Origins
from judge.claims import Claims, claims
from judge.original import Answer, Asked, Original
from judge.rules import RULES

CORPUS, PROGRAMS = goldens.FOLDER / "judge.json.xz", goldens.FOLDER / "judge-programs.txz"
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
        self._whole: dict[str, Answer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        for original in self._originals.values():
            original.__exit__()

    def judge(self, case: Case) -> Verdict:
        """Return what comes of a case; its store is asked about by both sides at the same time."""
        with programs.new_folder(self._home) as folder, ThreadPoolExecutor(1) as thread:
            origin = cases.make(case, self.origins, folder / "store")
            asked = asked_of(origin)
            answering = thread.submit(self.answer, case, asked)
            said = claims(
                folder / "store", origin.options, origin.root, asked.keys, folder / "copies"
            )
            answer, after = answering.result(), {}
            for name, path in said["copies"].items():
                later = self._answer(Path(path), origin, asked._replace(again=False))
                if later.get("refusal") != "hangs":
                    after[name] = later
        facts = _facts(case, answer, self._answer_of_whole(origin, asked))
        return Verdict(str(case), broken_rules(said, answer, after), tuple(facts))

    def answer(self, case: Case, asked: Asked | None = None) -> Answer:
        """Return what the original makes of a case."""
        with programs.new_folder(self._home) as folder:
            origin = cases.make(case, self.origins, folder / "store")
            return self._answer(folder / "store", origin, asked or asked_of(origin))

    def _answer(self, root: Path, origin: Origin, asked: Asked) -> Answer:
        if origin.version not in self._originals:
            self._originals[origin.version] = Original(self._home, origin.version)
        return self._originals[origin.version].answer(root, origin.settings, asked)

    def _answer_of_whole(self, origin: Origin, asked: Asked) -> Answer:
        """Return the answer about an origin; about a program only the last one is kept."""
        if origin.name not in self._whole:
            self._whole = {name: one for name, one in self._whole.items() if ";" not in name}
            with programs.new_folder(self._home) as folder:
                cases.copy(origin.root, folder / "store")
                asked = asked._replace(again=False)
                self._whole[origin.name] = self._answer(folder / "store", origin, asked)
        return self._whole[origin.name]


def broken_rules(said: Claims, answer: Answer, after: Mapping[str, Answer]) -> dict[str, list[str]]:
    """Return the rules that are broken, and by which claims."""
    found = {rule.__name__: list(rule(said, answer, after)) for rule in RULES}
    return {name: texts for name, texts in found.items() if texts}


def asked_of(origin: Origin) -> Asked:
    """Return keys of an origin, from its begin to its end, and its queues."""
    columns = ["topic", "queueId", "keys", "msgId"]
    with rmqstore.open(origin.root, **cases.located(origin.options, origin.root)) as store:
        scan = store.scan(
            columns=columns, include_system_topics=True, mode="DROPMALFORMED",
            fail_on_data_loss=False,
        )  # fmt: skip
        rows = scan.read_all().to_pylist()
    keys = [(row["topic"], key) for row in rows for key in (row["keys"] or "").split()]
    keys += [(row["topic"], row["msgId"]) for row in rows]
    queues = sorted({(row["topic"], row["queueId"]) for row in rows})
    return Asked(tuple(keys[:: len(keys) // _KEYS + 1]), tuple(queues))


def recorded() -> dict[str, Answer]:
    """Return the answers of the original about cases, by their text."""
    with lzma.open(CORPUS, "rt", encoding="utf-8") as file:
        answers: dict[str, Answer] = json.load(file)
    return answers


def record(judge: Judge, folder: Path, texts: Sequence[str]) -> None:
    """Keep the answers about cases, beside those that are recorded, and the stores of programs.

    A program that is run again may leave other bytes, so stores that are recorded stay. The
    origins of the judge lie in the folder.
    """
    recorded_origins(folder)
    answers = recorded()
    answers |= {text: judge.answer(Case.parse(text)) for text in texts if text not in answers}
    names = {Case.parse(text).origin for text in answers}
    roots = {judge.origins[name].root for name in names if name.startswith("program/")}
    with tarfile.open(PROGRAMS, "w:xz") as archive:
        for root in sorted(roots):
            archive.add(root.parent, Path("program") / root.parent.name)
    with lzma.open(CORPUS, "wt", encoding="utf-8") as file:
        json.dump(answers, file, separators=(",", ":"), sort_keys=True)


def recorded_origins(folder: Path) -> Origins:
    """Return the origins of recorded cases, without a JVM."""
    with tarfile.open(PROGRAMS) as archive:
        for name in {Path(*Path(name).parts[:2]) for name in archive.getnames()}:
            shutil.rmtree(folder / name, ignore_errors=True)  # of a run with other files
        archive.extractall(folder, filter="data")
    return Origins(folder)


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
