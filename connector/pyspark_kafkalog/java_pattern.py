r"""Regular expressions of Java, which ``subscribePattern`` is in Spark, for Python's ``re``.

Names of topics have letters, digits, ``.``, ``_`` and ``-`` of ASCII only. What their patterns need
is the same in both languages, but for a hyphen after a set, as in ``[\w-.]``. All else is refused.

Source: java.util.regex.Pattern, ConsumerStrategy of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from rmqstore.errors import OptionError

_IGNORE_CASE: Final = "(?i)"  # which Python takes at the beginning only
_REPETITION: Final = r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})"
_SET: Final = r"\\[dDwWsS]"
_ESCAPED: Final = r"\\[^A-Za-z0-9]"
_GROUP: Final = r"\((?:\?(?:-?i)?:|\?<?[=!]|(?!\?))"
# What is the same in both languages, outside a class and in one.
_ALIKE: Final = re.compile(rf"{_GROUP}|{_REPETITION}(?!\+)|{_SET}|\\[AbB]|{_ESCAPED}|[^\\\[({{*+?]")
_CLASS: Final = re.compile(rf"\[\^?((?:{_SET}|{_ESCAPED}|(?!&&|--|~~|\|\|)[^\\\[\]])*)")
_SET_AND_HYPHEN: Final = re.compile(rf"({_SET})-|\\.", re.DOTALL)
# How what is refused begins, of which the first that matches counts; what it is; what to write.
_REFUSED: Final = (
    (r"\\[pP](?:\{[^}]*\}?)?", "a property of characters", "write a class, such as [A-Z]"),
    (r"\\[QE]", "quoted text", r"write a backslash before each special character, as in \."),
    (r"\\[Zz]", "an end of this kind", "write $"),
    (r"\\G", "the end of the last match", "write ^"),
    (r"\\[1-9k]", "a reference to a group", "write the alternatives, as in aa|bb"),
    (r"(?s:\\.?)", "an escape of this kind", "write the characters that it stands for"),
    (r"\(\?[a-zA-Z-]*[:)]", "a flag of this kind or here", "begin with (?i), or write (?i:…)"),
    (r"\((?s:..?)", "a group of this kind", "write (…) or (?:…)"),
    (rf"{_REPETITION}\+", "a possessive quantifier", "leave out its last +"),
    (r"\{", "a { without a number of repetitions", r"write {n}, {n,} or {n,m}, or \{"),
    (r"&&", "an intersection of classes", "write one class of the characters that are left"),
    (r"--|~~|\|\|", "a doubled character in a class", "write it once"),
    (r"\[", "a class within a class", r"write one class of all characters, or \["),
    (r"\]", "a class that begins with ]", r"write \]"),
)


@cache
def compile_java(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression of Java; ``search`` finds what Java finds in names of topics.

    Raises:
        OptionError: it is malformed, or has something that is not supported.
    """
    translated = "".join(_translated(pattern))
    try:
        return re.compile(translated, re.ASCII)
    except (re.error, OverflowError, RecursionError) as err:
        raise _error(pattern, f"is not a regular expression that can be used here: {err}") from err


def _error(pattern: str, text: str) -> OptionError:
    return OptionError(f"subscribePattern {pattern!r}: {text}")


def _refusal(pattern: str, at: int) -> OptionError:
    """Return the error that names what stands there, and what to write instead."""
    for begin, what, instead in _REFUSED:
        found = re.compile(begin).match(pattern, at)
        if found is not None:
            return _error(pattern, f"{found[0]} ({what}) is not supported here; {instead}")
    return _error(pattern, "a [ is not closed")


def _translated(pattern: str) -> Iterator[str]:
    """Yield the parts of a pattern in Python's syntax.

    Raises:
        OptionError: one is not supported.
    """
    at = 0
    if pattern.startswith(_IGNORE_CASE):
        at = len(_IGNORE_CASE)
        yield _IGNORE_CASE
    while at < len(pattern):
        found = _CLASS.match(pattern, at)
        if found is None:
            found = _ALIKE.match(pattern, at)
            if found is None:
                raise _refusal(pattern, at)
            at = found.end()
            yield found[0]
        else:
            at = found.end()
            if not found[1] or not pattern.startswith("]", at):
                raise _refusal(pattern, at)
            yield _SET_AND_HYPHEN.sub(_with_literal_hyphen, found[0])


def _with_literal_hyphen(found: re.Match[str]) -> str:
    return f"{found[1]}\\-" if found[1] else found[0]
