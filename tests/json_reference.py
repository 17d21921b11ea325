"""Rows as JSON, value by value: what the columns that verbs write are compared with."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from rmqstore.exchange.json_rows import BASE64
from rmqstore.query.times import in_current_zone


def jsonable(row: dict[str, Any]) -> dict[str, Any]:
    """Return one row, as pyarrow or a message gives it, with values that JSON can hold."""
    converted = dict(row)
    for name, value in row.items():
        if isinstance(value, datetime):
            converted[name] = in_current_zone(value).isoformat(timespec="milliseconds")
        elif name == "properties" and isinstance(value, list):
            converted[name] = dict(value)
        elif isinstance(value, bytes):
            try:
                converted[name] = value.decode()
            except UnicodeDecodeError:
                del converted[name]
                converted[f"{name}{BASE64}"] = base64.b64encode(value).decode()
    return converted
