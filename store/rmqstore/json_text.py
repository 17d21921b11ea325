"""JSON that people write, and other names with values, in which no value hides another one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rmqstore.errors import OptionError


def parse_json(text: str) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return the value of a JSON text.

    Raises:
        ValueError: it is no JSON, or nested too deeply, or an object has two different values of
            one name, of which other readers drop the first without a word.
    """
    try:
        return json.loads(text, object_pairs_hook=one_value_each)
    except RecursionError as err:
        raise ValueError("it is nested too deeply") from err


def one_value_each(pairs: Sequence[tuple[Any, Any]], where: str = "") -> dict[Any, Any]:
    """Return values by name; ``where`` begins the text of the error.

    Raises:
        OptionError: a name stands for two different values.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        for name, value in pairs:
            if value != values[name]:
                raise OptionError(f"{where}{name!r} stands for both {value!r} and {values[name]!r}")
    return values
