"""Writes the tables of options into the manual: ``python docs/_ext/option_tables.py``.

They lie between ``<!-- options: NAME -->`` and ``<!-- end of options -->``, and come from what
parses the options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pyspark_kafkalog.options import OPTIONS
from rmqstore.query.options import (
    ALL_READ_OPTIONS,
    LOOKUP_OPTIONS,
    READ_OPTIONS,
    STREAM_OPTIONS,
    VIEW_OPTIONS,
    WRITE_OPTIONS,
    Option,
)
from rmqstore.read.views.schema import ALLOWED, VIEW_NAMES

DOCS: Final = Path(__file__).parents[1]
_TABLES: Final[Mapping[str, Iterable[Option]]] = {
    "read": READ_OPTIONS,
    "look-up": LOOKUP_OPTIONS,
    "stream": STREAM_OPTIONS,
    "view": VIEW_OPTIONS,
    "write": WRITE_OPTIONS,
    "kafkalog": OPTIONS,
}
_BLOCK: Final = re.compile(r"(<!-- options: (.+) -->\n)(?s:.*?)(<!-- end of options -->)")


def with_tables(page: str) -> str:
    """Return the text of a page with its tables of options as they should be."""
    return _BLOCK.sub(lambda found: f"{found[1]}{_table(found[2])}\n{found[3]}", page)


def _table(name: str) -> str:
    if name == "views":
        rows = ["| option | views |", "| --- | --- |"]
        by_views: dict[str, list[str]] = {}
        for option in ALL_READ_OPTIONS:
            if "view" in option.scope or option.argument in ALLOWED:
                by_views.setdefault(_views(option), []).append(f"`{option.name}`")
        rows += [f"| {', '.join(names)} | {views} |" for views, names in by_views.items()]
        return "\n".join(rows)
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for option in _TABLES[name]:
        said = [text[0].upper() + text[1:] for text in (option.doc, option.more) if text]
        meaning = ". ".join(said).replace("|", "\\|")
        rows.append(f"| `{option.name}` | {option.shown or option.default or ''} | {meaning} |")
    return "\n".join(rows)


def _views(option: Option) -> str:
    views = ALLOWED.get(option.argument, VIEW_NAMES)
    if len(views) == len(VIEW_NAMES):
        return "all"
    others = [name for name in VIEW_NAMES if name not in views]
    if len(views) <= len(others):
        return ", ".join(f"`{name}`" for name in views)
    return f"all but {', '.join(f'`{name}`' for name in others)}"


if __name__ == "__main__":
    for path in DOCS.glob("*.md"):
        page = path.read_text(encoding="utf-8")
        if (written := with_tables(page)) != page:
            path.write_text(written, encoding="utf-8")
