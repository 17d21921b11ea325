"""Topics by pattern, as a shell has it: ``*``, ``?`` and ``[…]``, which no name of a topic has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase, translate
from typing import Final

from rmqstore.errors import Argument, OptionError, Text, about
from rmqstore.format.topics import is_system_topic, system_topic_pattern

_FEW_NAMES: Final = 12
_WILDCARDS: Final = frozenset("*?[")


def is_pattern(name: str) -> bool:
    """Tell whether a name stands for all topics that match it."""
    return not _WILDCARDS.isdisjoint(name)


def match_topics(
    names: Iterable[str], known: Iterable[str], *, include_system_topics: bool
) -> tuple[str, ...]:
    """Return topics by name and by pattern, each once.

    Args:
        names: names, which are returned as they are, and patterns.
        known: the topics that there are.
        include_system_topics: whether system topics match patterns.

    Raises:
        OptionError: no topic matches a pattern.
    """
    known = list(known)
    topics: dict[str, None] = {}
    for name in names:
        if not is_pattern(name):
            topics[name] = None
            continue
        matching = [topic for topic in known if fnmatchcase(topic, name)]
        chosen = [
            topic for topic in matching if include_system_topics or not is_system_topic(topic)
        ]
        if not chosen:
            text = about("subscribe", f" {name!r} matches no topic")
            if matching:
                text = Text(
                    about("subscribe", f" {name!r} matches only system topics, which "),
                    Argument("include_system_topics", value=True),
                    " lets it match",
                )
            raise OptionError(text)
        topics |= dict.fromkeys(chosen)
    return tuple(topics)


def nearest_topics(missing: Iterable[str], known: Collection[str], what: str = "topics") -> str:
    """Return, in words, the topics that there are: all if they are few, else those nearest.

    Args:
        missing: names that no topic has.
        known: all topics.
        what: what the names are of.
    """
    if len(known) <= _FEW_NAMES:
        return f"it has: {', '.join(sorted(known)) or 'none'}"
    near = dict.fromkeys(one for name in missing for one in get_close_matches(name, known, 5))
    nearest = f", the nearest {', '.join(near)}" if near else ""
    return f"it has {len(known):,} {what}{nearest}"


def regular_expression(names: Iterable[str], *, include_system_topics: bool) -> str:
    """Return the regular expression for topics by name and by pattern, as subscribe_pattern.

    Args:
        names: names and patterns.
        include_system_topics: whether system topics match patterns.
    """
    lookahead = "" if include_system_topics else rf"(?!{system_topic_pattern()}\Z)"
    return "|".join(
        lookahead + translate(name) if is_pattern(name) else re.escape(name) for name in names
    )
