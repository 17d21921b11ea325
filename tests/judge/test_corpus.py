"""What we say of broken stores agrees with what the original did with them, as it is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from judge import cases
from judge.cases import Case, Origins
from judge.claims import claims
from judge.judging import asked_of, broken_rules, recorded, recorded_origins

ANSWERS = recorded()
_SAMPLE = 8


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
    origin = cases.make(Case.parse(text), origins, tmp_path / "store")
    keys = asked_of(origin).keys
    said = claims(tmp_path / "store", origin.options, origin.root, keys, tmp_path / "copies")
    assert broken_rules(said, ANSWERS[text], {}) == {}
