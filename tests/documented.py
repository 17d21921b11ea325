"""The columns of a message as docs/columns.md has them: what tests hold against the schema.

A new column has its row there, and no list in a test names it once more.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

PAGE: Final = Path(__file__).parents[1] / "docs" / "columns.md"
ARROW: Final = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "MAP<STRING,STRING>": pa.map_(pa.string(), pa.string()),
}
_ROW = re.compile(r"^\| ([\w, ]+) \| ([A-Z][A-Z<>,]*?)(, null)? \| (.*)\|$", re.MULTILINE)


class Column(NamedTuple):
    """A row of the page.

    Attributes:
        sql: the type, as SQL spells it.
        may_be_null: whether the page says so.
        is_default: whether reads give it unless they name columns.
    """

    sql: str
    may_be_null: bool
    is_default: bool


def _columns() -> dict[str, Column]:
    found = {}
    for names, sql, null, meaning in _ROW.findall(PAGE.read_text(encoding="utf-8")):
        if meaning.startswith("only with"):  # a column of some reads, not of messages
            continue
        is_default = not meaning.startswith("on request only")
        for name in names.split(", "):
            found[name] = Column(sql, bool(null), is_default)
    return found


COLUMNS: Final = _columns()
DEFAULT: Final = [name for name, column in COLUMNS.items() if column.is_default]
