"""The columns that a condition may name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from rmqstore.errors import Argument, OptionError, Text

_ALIKE: Final = 0.75  # how alike two names must be, of 1: `price` is not a slip for `topic`


def require_column(name: str, known: Sequence[str], where: str) -> None:
    """Refuse a name that is not a column's.

    Args:
        name: as the condition has it.
        known: the columns that it may name.
        where: the condition, for the message.

    Raises:
        OptionError: with the column that may have been meant.
    """
    if name in known:
        return
    columns = {column.replace("_", "").lower(): column for column in known}
    matches = get_close_matches(name.replace("_", "").lower(), columns, 1, _ALIKE)
    if matches:
        hint = Text(f"did you mean {columns[matches[0]]}?")
    else:
        hint = Text(f"there are {', '.join(known)}; properties go into ", Argument("filter", ""))
    raise OptionError(Text(where, f": {name[:100]!r} is not a column: ", hint))


def require_columns(names: Iterable[str], known: Sequence[str], where: str) -> None:
    """Refuse names that are not those of columns; see :func:`require_column`."""
    for name in sorted(names):
        require_column(name, known, where)
