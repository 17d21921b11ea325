"""What ships is written in plain sentences: empty phrases and unidiomatic ones stay out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(
            path
            for folder in ("store", "connector", "docs")
            for path in (ROOT / folder).rglob("*")
            if path.suffix in {".py", ".md", ".j2"} and "_build" not in path.parts
        ),
    ]
)
# Add a phrase as soon as none of the texts has it.
BANNED = (
    # says nothing
    "aforementioned", "basically", "hereby", "in order to", "it is important to",
    "it should be noted", "needless to say", "obviously", "of course", "please", "simply",
    "the fact that", "worth noting",
    # praises
    "best-in-class", "blazing", "cutting edge", "easy to use", "leverage", "out of the box",
    "powerful", "robust", "seamless", "state of the art", "under the hood", "utilize",
    "world-class",
    # is not English
    "allows to", "anew", "dearest", "enables to", "informations", "is no record", "so many",
    # is said otherwise here: return, report, guarantee, continue; and RocketMQ's names of ports
    "tell", "tells", "telling", "vouch", "vouches", "by now", "none of ours", "go on", "goes on",
    "ordinary port", "port for replicas",
    # has a word of the field: slice or chunk, valid, handshake, mismatch, maintenance, LMQ, port
    "piece", "pieces", "sound", "unsound", "greeting", "misfit", "misfits", "upkeep",
    "light queue", "light queues", "informant", "announce", "announced", "duty", "fruitless",
    "hopeless", "overtaken", "settle", "settled", "spelled", "stated", "told",
    # names the house instead of the thing
    "the house", "the room", "what they come to",
    # has a better word: allowed, refused; for example, that is
    "blacklist", "whitelist", "e.g.", "i.e.",
)  # fmt: skip
# Between two words a line of a comment or docstring may end.
_GAP = r"(?: |\s*\n\s*(?:#+ )?)"
_PHRASES = "|".join(_GAP.join(map(re.escape, phrase.split(" "))) for phrase in BANNED)
_ANY = re.compile(rf"(?<!\w)(?:{_PHRASES})(?!\w)", re.IGNORECASE)


def banned_phrases(text: str) -> list[tuple[int, str]]:
    """Return the banned phrases of a text, each with its line."""
    return [
        (text.count("\n", 0, found.start()) + 1, re.sub(_GAP, " ", found.group()).lower())
        for found in _ANY.finditer(text)
    ]


def test_the_texts_have_none_of_the_banned_phrases() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {phrase}"
        for path in TEXTS
        for line, phrase in banned_phrases(path.read_text(encoding="utf-8"))
    ]
    if found:
        pytest.fail("\n".join([f"{len(found)} found:", *found]), pytrace=False)


def test_a_phrase_is_found_wherever_a_line_breaks() -> None:
    texts = [
        "It is easy\nto use.",
        "    # This is easy\n    # to use.",
        "It is\n\neasy to\n    use.",
        "Easy to use",
        "(easy to use)",
    ]
    assert [banned_phrases(text) for text in texts] == [
        [(line, "easy to use")] for line in (1, 1, 3, 1, 1)
    ]


def test_a_phrase_is_not_found_inside_of_words() -> None:
    assert banned_phrases("displease; impowerfully; the household") == []


def test_the_texts_are_those_that_ship() -> None:
    names = {str(path.relative_to(ROOT)) for path in TEXTS}
    assert {
        "README.md", "store/rmqstore/store/message_store.py",
        "connector/pyspark_rmqstore/source.py", "docs/cli.md",
    } <= names  # fmt: skip
