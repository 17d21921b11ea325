"""What we say of broken stores agrees with what the original did with them, as it is recorded.

Of other stores, which a seed breaks, much has to be true whatever the original does with them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tiers
from judge import cases
from judge.cases import Case, Origins
from judge.claims import Claims, claims
from judge.judging import asked_of, broken_rules, recorded, recorded_origins
from judge.original import Answer

ANSWERS = recorded()
_SAMPLE = 8
_UNKNOWN: Answer = {"starts": False, "refusal": "hangs"}  # no rule holds a claim against that


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Origins:
    return recorded_origins(tmp_path_factory.mktemp("origins"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=pytest.mark.medium if number < _SAMPLE else pytest.mark.thorough)
        for number, text in enumerate(ANSWERS)
    ],
)
def test_no_rule_is_broken(origins: Origins, tmp_path: Path, text: str) -> None:
    said = claimed(Case.parse(text), origins, tmp_path)
    assert broken_rules(said, ANSWERS[text], {}) == {}


def claimed(case: Case, origins: Origins, folder: Path) -> Claims:
    origin = cases.make(case, origins, folder / "store")
    keys = asked_of(origin).keys
    return claims(folder / "store", origin.options, origin.root, keys, folder / "copies")


@pytest.mark.medium
@pytest.mark.parametrize("seed", tiers.split(range(24), 4))
def test_what_needs_no_original_is_true_of_random_stores(
    origins: Origins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Errors are our own, memory and time are bounded, reading and refusals change nothing."""
    monkeypatch.setattr(cases, "PROGRAM_SHARE", 0)  # these need a JVM
    case = cases.draw(seed, origins)
    assert broken_rules(claimed(case, origins, tmp_path), _UNKNOWN, {}) == {}, case
