"""Questions to a store that changes while they are answered, with a scripted clock and store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rmqstore.errors import CorruptQueueError, FileDeletedError, NotAStoreError, RmqStoreError
from rmqstore.storage.broker.retry import Deletions, Recoveries, Restarts, retry
from rmqstore.storage.files.paths import StorePaths

DAMAGE = CorruptQueueError("q", 20, "no unit")


class Signs(NamedTuple):
    state: int
    may_be_recovering: bool


class Asked:
    """A store with scripted signs of change, and a question that fails ``n_failures`` times."""

    def __init__(
        self, signs: Iterator[Signs], n_failures: float, err: RmqStoreError = DAMAGE
    ) -> None:
        self._signs, self._n_failures, self._err = signs, n_failures, err
        self.n_asked = self.n_forgotten = 0
        self._recoveries = Recoveries(lambda: [next(self._signs)], self._forget)

    def _forget(self) -> None:
        self.n_forgotten += 1

    def _ask(self) -> str:
        self.n_asked += 1
        if self.n_asked <= self._n_failures:
            raise self._err
        return "answer"

    def answer(self) -> str:
        return retry(self._ask, self._recoveries)


def signs_of(*states: int, may_be_recovering: bool = True) -> Iterator[Signs]:
    """Yield these states, and the last one ever after."""
    for state in states:
        yield Signs(state, may_be_recovering)
    while True:
        yield Signs(states[-1], may_be_recovering)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Return a clock that only waiting moves on."""
    now = 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("rmqstore.storage.broker.retry.sleep", wait)
    monkeypatch.setattr("rmqstore.storage.broker.retry.monotonic", lambda: now)
    return lambda: now


@pytest.mark.parametrize(
    ("signs", "n_asked"),
    [(signs_of(1), 1), (signs_of(1, 2, may_be_recovering=False), 2)],
    ids=["at rest", "no recovery"],
)
def test_a_store_that_no_recovery_can_change_is_not_waited_for(
    clock: Callable[[], float], signs: Iterator[Signs], n_asked: int
) -> None:
    question = Asked(signs, n_failures=float("inf"))
    with pytest.raises(CorruptQueueError):
        question.answer()
    assert (question.n_asked, question.n_forgotten, clock()) == (n_asked, n_asked - 1, 0.0)


def test_a_store_that_is_being_recovered_is_read_until_it_answers() -> None:
    question = Asked(signs_of(1, 2, 2, 3, 3, 3), n_failures=5)
    assert question.answer() == "answer"
    assert question.n_forgotten == 5


@pytest.mark.parametrize(
    ("states", "least", "most"), [((1, 2), 0.5, 2), (range(1000), 10, 60)], ids=["rests", "changes"]
)
def test_a_recovery_is_given_up_that_makes_no_progress_or_does_not_end(
    clock: Callable[[], float], states: Iterable[int], least: float, most: float
) -> None:
    question = Asked(signs_of(*states), n_failures=float("inf"))
    with pytest.raises(CorruptQueueError):
        question.answer()
    assert least < clock() < most


def test_what_no_recovery_brings_about_is_raised_at_once() -> None:
    question = Asked(signs_of(1, 2, 3), n_failures=1, err=NotAStoreError("x"))
    with pytest.raises(NotAStoreError):
        question.answer()
    assert question.n_asked == 1


class Listed:
    """A store whose files are gone until they have been listed ``n_listings`` times again."""

    def __init__(self, n_listings: float) -> None:
        self._n_listings = n_listings
        self.n_asked = self.n_refreshed = 0

    def refresh(self) -> None:
        self.n_refreshed += 1

    def ask(self) -> str:
        self.n_asked += 1
        if self.n_refreshed < self._n_listings:
            raise FileDeletedError("a file")
        return "answer"


def test_files_that_were_deleted_are_listed_again_before_a_question_is_asked_again() -> None:
    store = Listed(2)
    assert retry(store.ask, Deletions(store)) == "answer"
    assert (store.n_asked, store.n_refreshed) == (3, 2)


def test_files_that_never_stop_going_are_given_up() -> None:
    store = Listed(float("inf"))
    with pytest.raises(FileDeletedError):
        retry(store.ask, Deletions(store))
    assert store.n_asked == store.n_refreshed + 1 < 100


class Opened:
    """A store that something opens or closes while each of the first ``n_runs`` answers is made."""

    def __init__(self, root: Path, n_runs: float) -> None:
        self.paths = StorePaths(root, (), root / "consumequeue", root / "index")
        self._n_runs = n_runs
        self.n_asked = self.n_forgotten = 0

    def forget(self) -> None:
        self.n_forgotten += 1

    def ask(self) -> int:
        self.n_asked += 1
        if self.n_asked <= self._n_runs:
            self.paths.abort.unlink() if self.n_asked % 2 == 0 else self.paths.abort.touch()
        return self.n_asked


@pytest.mark.parametrize("n_runs", [0, 1, 2])
def test_an_answer_that_is_of_two_runs_is_not_taken(tmp_path: Path, n_runs: int) -> None:
    store = Opened(tmp_path, n_runs)
    assert retry(store.ask, Restarts(store.paths, store.forget)) == n_runs + 1
    assert store.n_forgotten == n_runs


def test_a_store_that_is_opened_all_the_time_is_answered_in_the_end(tmp_path: Path) -> None:
    store = Opened(tmp_path, float("inf"))
    assert retry(store.ask, Restarts(store.paths, store.forget)) < 100
