"""Regular expressions of Java, which ``subscribePattern`` is in Spark, for Python's ``re``.

Names of topics have letters, digits, ``.``, ``_`` and ``-`` of ASCII only, which makes most of what
differs between the two the same. What is left and has no exact counterpart is refused.

Source: java.util.regex.Pattern, ConsumerStrategy of Spark.
"""

from __future__ import annotations

import re
import string
from functools import cache
from typing import Final, NoReturn

from rmqstore.errors import OptionError

_LOWER, _UPPER = string.ascii_lowercase, string.ascii_uppercase
_LETTERS, _DIGITS, _PUNCT = string.ascii_letters, string.digits, string.punctuation
_SYMBOLS: Final = "$+<=>^`|~"  # those of _PUNCT that are symbols by Unicode
_ASCII: Final = "".join(map(chr, range(128)))
_CONTROLS: Final = "".join(map(chr, (*range(32), 127)))
_CATEGORIES: Final = {
    "L": _LETTERS, "Lu": _UPPER, "Ll": _LOWER, "N": _DIGITS, "Nd": _DIGITS, "Pd": "-", "Pc": "_",
    "P": "".join(sorted(set(_PUNCT) - set(_SYMBOLS))), "S": _SYMBOLS, "Z": " ", "Zs": " ",
    "Alphabetic": _LETTERS, "Letter": _LETTERS, "Digit": _DIGITS, "Lowercase": _LOWER,
    "Uppercase": _UPPER, "Latin": _LETTERS,
}  # fmt: skip
_CLASSES: Final = {
    "Lower": _LOWER, "Upper": _UPPER, "ASCII": _ASCII, "Alpha": _LETTERS, "Digit": _DIGITS,
    "Alnum": _LETTERS + _DIGITS, "Punct": _PUNCT, "Graph": _LETTERS + _DIGITS + _PUNCT,
    "Print": _LETTERS + _DIGITS + _PUNCT + " ", "Blank": " \t", "Cntrl": _CONTROLS,
    "XDigit": string.hexdigits, "Space": " \t\n\x0b\f\r", "L1": _ASCII, "javaLowerCase": _LOWER,
    "javaUpperCase": _UPPER, "InBasicLatin": _ASCII, "InBASIC_LATIN": _ASCII,
    **{name: chars for name, chars in _CATEGORIES.items() if len(name) <= 2},
    **{f"Is{name}": chars for name, chars in _CATEGORIES.items()},
    **{f"general_category={name}": chars for name, chars in _CATEGORIES.items() if len(name) <= 2},
}  # fmt: skip
_OF_CASE: Final = {_LOWER, _UPPER}  # which Java's versions match otherwise if case is ignored
_SPACES: Final = {"h": " \t", "v": "\n\x0b\f\r"}
_CONTROL_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS: Final = {"A": r"\A", "Z": r"\Z", "z": r"\Z", "b": r"\b", "B": r"\B"}
_QUANTIFIER: Final = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_GROUP: Final = re.compile(
    r"\(\?(?:<([a-zA-Z][a-zA-Z0-9]*)>|(:|=|!|>|<=|<!)|([a-z]*(?:-[a-z]*)?)([:)]))"
)
_PROPERTY: Final = re.compile(r"\\([pP])(?:\{([^}]*)\}|(\w))")
_REFERENCE: Final = re.compile(r"\\(?:k<([a-zA-Z][a-zA-Z0-9]*)>|([1-9])(?![0-9]))")
_CODED: Final = re.compile(
    r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|x\{([0-9a-fA-F]{1,6})\}|0([0-3]?[0-7]{1,2})"
)


@cache
def compile_java(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression of Java; ``search`` finds what Java finds in names of topics.

    Raises:
        OptionError: it is malformed, or cannot be translated.
    """
    translation = _Translation(pattern)
    translated = translation.whole()
    try:
        return re.compile(translated, re.ASCII | (re.IGNORECASE if translation.ignores_case else 0))
    except (re.error, OverflowError, RecursionError) as err:
        raise _error(pattern, f"is not a regular expression that can be used here: {err}") from err


def _error(pattern: str, text: str) -> OptionError:
    return OptionError(f"subscribePattern {pattern!r}: {text}")


class _Translation:
    """One pass over a pattern.

    Attributes:
        ignores_case: whether the pattern begins with a flag that lets it ignore case.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self._begin = 0  # after the flags that the pattern begins with
        self.ignores_case = False
        self._may_ignore_case = False  # anywhere
        self._has_case = False

    def whole(self) -> str:
        """Return the pattern in Python's syntax.

        Raises:
            OptionError: something has no counterpart.
        """
        parts = []
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            if char == "\\":
                parts.append(self._escape(in_class=False))
            elif char == "[":
                parts.append(self._class())
            elif char == "(":
                parts.append(self._group())
            elif char == "{":
                found = _QUANTIFIER.match(self._pattern, self._at)
                if found is None:
                    self._refuse("a { that begins no number of repetitions")
                parts.append(self._take(len(found[0])))
            else:
                self._at += 1
                parts.append(char if char in "^$.|?*+)" else re.escape(char))
        if self._may_ignore_case and self._has_case:
            self._refuse("classes of lower or upper case together with (?i)")
        return "".join(parts)

    def _take(self, n_chars: int) -> str:
        self._at += n_chars
        return self._pattern[self._at - n_chars : self._at]

    def _refuse(self, what: str) -> NoReturn:
        raise _error(self._pattern, f"{what} cannot be translated from Java's regular expressions")

    def _group(self) -> str:
        if not self._pattern.startswith("(?", self._at):
            return self._take(1)
        found = _GROUP.match(self._pattern, self._at)
        if found is None:
            self._refuse(f"{self._pattern[self._at : self._at + 4]}…")
        is_first, begin = self._at == self._begin, self._take(len(found[0]))
        name, _, flags, end = found.groups()
        if name is not None:
            return f"(?P<{name}>"
        if flags is None:
            return begin
        on, _, off = flags.partition("-")
        if not set(on + off) <= set("idmsu" if self._pattern.isascii() else "idms"):
            self._refuse(f"the flags {begin}")
        # only i makes a difference to names of ASCII without line ends
        self._may_ignore_case |= "i" in on
        if end == ":":
            return f"(?{'i' if 'i' in on else ''}{'-i' if 'i' in off else ''}:"
        if not is_first:
            if "i" in on + off:
                self._refuse(f"{begin} after the beginning")
            return "(?:)"
        self._begin = self._at
        self.ignores_case = "i" not in off and (self.ignores_case or "i" in on)
        return ""

    def _escape(self, *, in_class: bool) -> str:
        """Translate what begins with a backslash; a single character, or several in a class."""
        char = self._pattern[self._at + 1 : self._at + 2]
        if char in set("dDwWsS"):
            return self._take(2)
        if char == "Q":
            end = self._pattern.find("\\E", self._at + 2)
            end = len(self._pattern) if end < 0 else end
            text = self._pattern[self._at + 2 : end]
            self._at = min(end + 2, len(self._pattern))
            return re.escape(text)
        if char in {"p", "P"}:
            found = _PROPERTY.match(self._pattern, self._at)
            chars = None if found is None else _CLASSES.get(found[2] or found[3])
            if found is None or chars is None:
                self._refuse(found[0] if found else "\\p")
            self._at += len(found[0])
            self._has_case |= chars in _OF_CASE
            return _in_class(chars, is_negated=found[1] == "P", in_class=in_class)
        if char.lower() in _SPACES:
            self._at += 2
            spaces = _SPACES[char.lower()]
            return _in_class(spaces, is_negated=char.isupper(), in_class=in_class)
        if not in_class and char in _ANCHORS:
            self._at += 2
            return _ANCHORS[char]
        if not in_class and char in {"k", *"123456789"}:
            found = _REFERENCE.match(self._pattern, self._at)
            if found is None:
                self._refuse(self._pattern[self._at : self._at + 3])
            self._at += len(found[0])
            return f"(?P={found[1]})" if found[1] else f"(?:{found[0]})"
        return re.escape(self._escaped_char())

    def _escaped_char(self) -> str:
        char = self._pattern[self._at + 1 : self._at + 2]
        coded = _CODED.match(self._pattern, self._at + 1)
        if coded is not None:
            code = next(group for group in coded.groups() if group is not None)
            number = int(code, 8 if char == "0" else 16)
            if number > 0x10FFFF:
                self._refuse(f"\\{coded[0]}")
            self._at += 1 + len(coded[0])
            return chr(number)
        if not char or (char.isalnum() and char not in _CONTROL_ESCAPES):
            self._refuse(f"\\{char}")
        self._at += 2
        return _CONTROL_ESCAPES.get(char, char)

    def _class(self) -> str:
        begin = self._take(2 if self._pattern.startswith("[^", self._at) else 1)
        items: list[str] = []
        while True:
            rest = self._pattern[self._at :]
            if not rest:
                raise _error(self._pattern, "a [ is not closed")
            if rest[0] == "]" and items:
                self._at += 1
                return begin + "".join(items) + "]"
            if rest[0] == "[" or rest.startswith("&&"):
                self._refuse(f"{rest[:2]} within a class")
            items.append(self._item())

    def _item(self) -> str:
        """Translate one character, set or range of a class."""
        first = self._member()
        is_range = self._pattern.startswith("-", self._at)
        if not is_range or len(self._pattern) == self._at + 1 or not _is_single(first):
            return first
        if self._pattern[self._at + 1] in "[]&":
            if self._pattern[self._at + 1] != "]":
                self._refuse(self._pattern[self._at : self._at + 2] + " within a class")
            return first
        self._at += 1
        last = self._member()
        if not _is_single(last):
            self._refuse(f"the range {first}-{last}")
        return f"{first}-{last}"

    def _member(self) -> str:
        if self._pattern[self._at] == "\\":
            return self._escape(in_class=True)
        return re.escape(self._take(1))


def _is_single(member: str) -> bool:
    """Tell whether a translated member of a class is one character."""
    is_escaped = len(member) == 2 and member[0] == "\\" and member[1] not in "dDwWsS"
    return len(member) == 1 or is_escaped


def _in_class(chars: str, *, is_negated: bool, in_class: bool) -> str:
    """Return a set of characters for within a class, or as one."""
    if is_negated:
        others = "".join(char for char in _ASCII if char not in chars)
        inside = re.escape(others) + "\x80-\U0010ffff"
    else:
        inside = re.escape(chars)
    return inside if in_class else f"[{inside}]"
