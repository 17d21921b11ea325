"""The tokens of a condition's text: what the parsers of both grammars have in common."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple, TypeVar

from rmqstore.errors import OptionError, as_typed

END: Final = "end"  # the kind of the token after the last one
MAX_DEPTH: Final = 64  # of what opens a level; each takes several frames of Python's stack

T = TypeVar("T")

_LONGEST_SHOWN: Final = 200  # characters of a text that an error repeats


class Token(NamedTuple):
    """A part of the text that a grammar does not take apart.

    Attributes:
        kind: the group of the pattern that matched, or END. A keyword and a symbol are kinds of
            their own, in upper case.
        text: the token as it is written.
        start: the position of its first character.
    """

    kind: str
    text: str
    start: int


class Tokens(ABC):
    """Reads a text one token ahead. A parser extends it with the rules of its grammar.

    Nothing after the next token is looked at, so a parser decides how much of the text must be
    readable.
    """

    _SUBJECT: ClassVar[str]  # what the text is, as errors call it
    _PATTERN: ClassVar[re.Pattern[str]]  # its group `blank` is skipped, `symbol` stands for itself
    _KEYWORDS: ClassVar[frozenset[str]]  # in upper case; the text may have them in any

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0  # of the levels around the present place
        self._token = self._read(0)

    @abstractmethod
    def _unreadable(self, start: int) -> str:
        """Return the reason why a character begins no token."""

    def _read(self, start: int) -> Token:
        """Return the first token at or after a position."""
        while start < len(self._text):
            match = self._PATTERN.match(self._text, start)
            if match is None:
                raise self._refused(start, self._unreadable(start))
            if match.lastgroup != "blank":
                word = match[0].upper()
                is_own_kind = match.lastgroup == "symbol" or word in self._KEYWORDS
                return Token(word if is_own_kind else str(match.lastgroup), match[0], start)
            start = match.end()
        return Token(END, "", start)

    def _take(self) -> Token:
        token = self._token
        self._token = self._read(token.start + len(token.text))
        return token

    def _accept(self, *kinds: str) -> Token | None:
        """Take the next token if it is of one of these kinds."""
        return self._take() if self._token.kind in kinds else None

    def _expect(self, kind: str, description: str) -> Token:
        """Take the next token, which must be of this kind."""
        if self._token.kind != kind:
            raise self._unexpected(description)
        return self._take()

    def _separated(self, separator: str, read: Callable[[], T]) -> list[T]:
        """Return what is read, once and again after each separator."""
        parts = [read()]
        while self._accept(separator):
            parts.append(read())
        return parts

    def _unquoted(self, token: Token) -> str:
        """Return the text of a string, in which two quotes stand for one."""
        return token.text[1:-1].replace("''", "'")

    def _deepen(self, token: Token) -> None:
        """Count the level that a token opens; one that lies too deep is refused."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            fewer = "write it with fewer parentheses, NOTs and signs"
            reason = f"nested deeper than {MAX_DEPTH} levels; {fewer}"
            raise self._refused(token.start, reason)

    def _unexpected(self, expected: str) -> OptionError:
        """Return the error of an unexpected token, with the expected one."""
        actual = "the end" if self._token.kind == END else shortened(self._token.text)
        return self._refused(self._token.start, f"expected {expected}, found {actual}")

    def _refused(self, start: int, reason: str) -> OptionError:
        return OptionError(f"{self._position(start)}: {reason}")

    def _position(self, start: int) -> str:
        """Return the text and a position in it, as errors name them.

        Of a long text it is the part around the position. What a terminal would not show stands in
        escapes.
        """
        text = self._text
        low = 0
        if len(text) > _LONGEST_SHOWN:
            low = min(max(start - _LONGEST_SHOWN // 2, 0), len(text) - _LONGEST_SHOWN)
        high = low + _LONGEST_SHOWN
        shown = "".join(
            character if character.isprintable() else repr(character)[1:-1]
            for character in text[low:high]
        )
        if low:
            shown = f"…{shown}"
        if high < len(text):
            shown += "…"
        quote = '"' if "'" in text else "'"
        quoted = as_typed(f"{quote}{shown}{quote}")
        return f"{self._SUBJECT} {quoted}, character {start + 1}"


def shortened(text: str) -> str:
    """Return a text as an error repeats it."""
    return as_typed(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")
