"""Judges cases in processes of their own, for one of them may hang or end for good."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

from judge.cases import Case, draw, smaller
from judge.judging import Judge, Verdict

WORKERS = 2
ORIGINS = Path(__file__).parents[2] / ".judge"
_HANGS = 180  # seconds without a word
_SHRINKING = 60  # seconds
_SHOWN = 3  # cases of the same broken rules that a process makes smaller


def judged(seeds: Sequence[int]) -> Iterator[Verdict]:
    """Yield what comes of all seeds, in the order in which it is known."""
    workers = [_Worker(seeds[number::WORKERS]) for number in range(WORKERS)]
    while workers:
        ready = wait([worker.pipe for worker in workers], timeout=1)
        for worker in workers:
            if worker.pipe in ready or worker.is_late:
                yield from worker.news()
        workers = [worker for worker in workers if worker.seeds]


class _Worker:
    """A process that judges the cases of seeds; if it ends or hangs another one goes on.

    Attributes:
        seeds: those whose cases are not judged yet.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(theirs, self.seeds))
        self._process.start()
        theirs.close()
        self._case: Case | None = None
        self._since = time.monotonic()

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self._since > _HANGS

    def news(self) -> Iterator[Verdict]:
        """Yield a verdict if the process has one, or that it does not give any."""
        self._since = time.monotonic()
        try:
            said = self.pipe.recv() if self.pipe.poll() else "hangs"
        except EOFError:
            said = "ends"
        if isinstance(said, Case):
            self._case = said
            return
        del self.seeds[0]
        if isinstance(said, Verdict):
            yield said
        else:
            yield Verdict(
                str(self._case), {"no hang and no end": [f"the process that judges it {said}"]}
            )
            self._process.kill()
            if self.seeds:
                self._start()
        if not self.seeds:
            self._process.join()


def _work(pipe: Connection, seeds: Sequence[int]) -> None:
    """Judge the cases of seeds; the next one is drawn, and its program run, meanwhile."""
    shown: Counter[frozenset[str]] = Counter()
    with (
        tempfile.TemporaryDirectory() as home,
        Judge(Path(home), ORIGINS) as judge,
        ThreadPoolExecutor(1) as thread,
    ):
        drawing = [thread.submit(draw, seed, judge.origins) for seed in seeds[:1]]
        for number in range(len(seeds)):
            case = drawing.pop().result()
            drawing = [thread.submit(draw, seed, judge.origins) for seed in seeds[number + 1 :][:1]]
            pipe.send(case)
            verdict = judge.judge(case)
            rules = frozenset(verdict.broken)
            if rules and shown[rules] < _SHOWN:
                shown[rules] += 1
                verdict = _shrunk(judge, case, verdict)
            pipe.send(verdict)


def _shrunk(judge: Judge, case: Case, verdict: Verdict) -> Verdict:
    """Return the verdict of a case that is made smaller, which breaks one of the same rules."""
    until = time.monotonic() + _SHRINKING
    candidates = smaller(case)
    while time.monotonic() < until and (candidate := next(candidates, None)) is not None:
        with suppress(OSError):  # a smaller program makes fewer files
            found = judge.judge(candidate)
            if found.broken.keys() & verdict.broken.keys():
                verdict = found._replace(facts=verdict.facts)
                candidates = smaller(candidate)
    return verdict
