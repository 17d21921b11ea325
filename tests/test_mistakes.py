"""The mistakes of ``mistakes.py`` can still be made in today's code; ``mutants.py`` makes them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mistakes import MISTAKES, Mistake

TESTS = Path(__file__).parent


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.harm)
def test_a_mistake_can_be_made_at_one_place(mistake: Mistake) -> None:
    text = (TESTS.parent / mistake.module).read_text(encoding="utf-8")
    assert text.count(mistake.before) == 1, "the module has changed: mend the entry"
    ast.parse(text.replace(mistake.before, mistake.after))
    assert (TESTS / mistake.tests).exists()


def test_no_mistake_is_there_twice() -> None:
    assert len({(mistake.module, mistake.after) for mistake in MISTAKES}) == len(MISTAKES)
