"""The brokers of a cluster and where their stores lie, as users write it down.

It is a JSON object, or a file of JSON or TOML::

    broker-a = "s3://bucket/broker-a"
    broker-b = ["/data/b/store", "/backup/b/store"]  # a master and its replica

In a TOML file these lines may also stand in a table ``[brokers]``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rmqstore.errors import OptionError, about
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.storage import read_small

_MAX_BYTES: Final = 16 << 20
_TABLE: Final = "brokers"


def read_brokers(value: str) -> dict[str, tuple[str, ...]]:
    """Return the paths of each broker's stores, by broker name and in the order given.

    Args:
        value: the text of a JSON object, or the path of a ``.json`` or ``.toml`` file.

    Raises:
        OptionError: there is no such file, or it is not a table of paths by name.
    """
    is_text = value.lstrip().startswith("{")
    where = "brokers" if is_text else f"brokers {value!r}"
    try:
        table = json.loads(value) if is_text else _load(Path(value))
    except (ValueError, OSError) as err:  # tomllib's and json's errors are ValueErrors
        raise OptionError(
            f"{where}: must be a JSON object, or a .json or .toml file ({err})"
        ) from err
    if isinstance(table, dict) and isinstance(table.get(_TABLE), dict) and len(table) == 1:
        table = table[_TABLE]
    if not isinstance(table, dict) or not table:
        raise OptionError(f"{where}: must be a table of stores by broker name")
    return {name: _paths(where, name, given) for name, given in table.items()}


def _load(file: Path) -> object:
    text = read_small(LOCAL, file, _MAX_BYTES).decode()
    return tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)


def _paths(where: str, name: str, given: object) -> tuple[str, ...]:
    paths = given if isinstance(given, list) else [given]
    if not name or not paths or not all(isinstance(path, str) and path for path in paths):
        raise OptionError(f"{where}: {name!r} must have a path, or a list of paths")
    return tuple(paths)


def names_by_path(brokers: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the broker's name for each path.

    Raises:
        OptionError: a path is there twice.
    """
    names: dict[str, str] = {}
    for name, paths in brokers.items():
        for path in paths:
            if path in names:
                raise OptionError(about("brokers", f": a path of {name} is named twice"))
            names[path] = name
    return names
