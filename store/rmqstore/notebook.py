"""Tables of values as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

MAX_ROWS: Final = 20

_MAX_CHARACTERS: Final = 60  # of a cell


def table(
    headers: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    types: Sequence[str] = (),
    n_left_out: int = 0,
    max_characters: int = _MAX_CHARACTERS,
) -> str:
    """Return a table in which every text is escaped, and cut if it is long.

    Args:
        headers: the names of the columns.
        rows: the values of each row; of bytes the text is shown.
        types: stand below the names.
        n_left_out: how many rows there are beside these.
        max_characters: as many as a cell shows.
    """
    small = [f"<br><small>{escape(text)}</small>" for text in types] or [""] * len(headers)
    top = [f"<th>{escape(head)}{below}</th>" for head, below in zip(headers, small, strict=True)]
    shown = [
        "".join(f"<td>{escape(_text(value, max_characters))}</td>" for value in row) for row in rows
    ]
    if n_left_out:
        shown.append(f'<td colspan="{len(headers)}">and {n_left_out} more</td>')
    body = "".join(f"<tr>{cells}</tr>" for cells in shown)
    return f"<table><thead><tr>{''.join(top)}</tr></thead><tbody>{body}</tbody></table>"


def line(text: str) -> str:
    """Return a line of text, escaped, to stand above a table."""
    return f"<div>{escape(text)}</div>"


def _text(value: object, max_characters: int) -> str:
    if isinstance(value, bytes):
        # A character has at most four bytes.
        text = value[: 4 * (max_characters + 1)].decode(errors="replace")
    else:
        text = str(value)
    if len(text) > max_characters:
        return f"{text[:max_characters]}\N{HORIZONTAL ELLIPSIS}"
    return text
