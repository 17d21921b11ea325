"""Values of options, of reads and writes alike: keys without case, words, numbers, sizes, paths."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote

from rmqstore.errors import OptionError, UnsupportedFeatureError

# What Spark itself hands to a source, or users set for Spark.
_SPARK_OWN = {"path", "paths", "queryname", "checkpointlocation", "timezone", "recursivefilelookup"}

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?://(?P<host>[^/]*))?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+)\s*(ms|s|min|m|h|d|)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def known_options(options: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the options by their documented spelling; Spark's own are left out.

    Raises:
        OptionError: a key is unknown.
    """
    spellings = {name.lower(): name for name in names}
    given = {}
    for key, value in options.items():
        lower = key.lower()
        if lower in _SPARK_OWN:
            continue
        if lower not in spellings:
            raise OptionError(_unknown(key, {"path": "path", **spellings}))
        given[spellings[lower]] = value
    return given


def _unknown(key: str, spellings: Mapping[str, str]) -> str:
    close = get_close_matches(key.lower(), spellings, n=1)
    suggestion = f", did you mean {spellings[close[0]]}?" if close else ";"
    return f"unknown option {key!r}{suggestion} known are: {', '.join(sorted(spellings.values()))}"


def stated_paths(options: Mapping[str, str], remedy: str) -> list[str]:
    """Return the paths that the options name, at least one.

    Args:
        options: as Spark hands them over.
        remedy: what to do where no path is named.
    """
    by_lower = {key.lower(): value for key, value in options.items()}
    values = [by_lower["path"]] if by_lower.get("path") else []
    if by_lower.get("paths"):
        values += _path_list(by_lower["paths"])
    if not values:
        raise OptionError(f"path: give the store's root, the folder that holds commitlog/: {remedy}")
    return values


def _path_list(value: str) -> list[str]:
    try:
        paths = json.loads(value)
    except json.JSONDecodeError as err:
        raise OptionError(f"paths {value!r}: a JSON list of paths ({err})") from err
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise OptionError(f"paths {value!r}: a JSON list of paths")
    return paths


def absolute_path(path: str) -> str:
    """Return an absolute local path; a ``file:`` URI loses its scheme, others are refused."""
    found = _URI.match(path)
    if found:
        scheme, host = found["scheme"].lower(), found["host"] or ""
        if scheme != "file" or host not in ("", "localhost"):
            raise UnsupportedFeatureError(f"path {path!r}: only files of this machine can be read yet")
        path = unquote(path[found.end() :])
    return str(Path(path).expanduser().absolute())


def word(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Return one of some words; the first of them where the option is not given."""
    value = given.get(name, words[0])
    for word in words:
        if value.lower() == word.lower():
            return word
    raise OptionError(f"{name} {value!r}: one of {', '.join(words)}")


def boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return true or false."""
    value = str(given.get(name, default)).lower()
    if value not in ("true", "false"):
        raise OptionError(f"{name} {value!r}: true or false")
    return value == "true"


def count(given: Mapping[str, str], name: str) -> int | None:
    """Return a whole number from 1 on, None where the option is not given."""
    value = given.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]+", value.strip()) or int(value) < 1:
        raise OptionError(f"{name} {value!r}: a whole number from 1 on")
    return int(value)


def duration(given: Mapping[str, str], name: str, default: str) -> float:
    """Return seconds, given as a number with a unit; milliseconds without one, as Spark has it."""
    value = given.get(name, default)
    found = _DURATION.fullmatch(value.strip())
    if not found:
        raise OptionError(f"{name} {value!r}: a time as in 15m, 30s or 500ms")
    return int(found[1]) * _SECONDS[found[2].lower() or "ms"]


def size(given: Mapping[str, str], name: str, default: str) -> int:
    """Return bytes, which may be given with a unit."""
    value = given.get(name, default)
    found = _SIZE.fullmatch(value.strip())
    if not found or not int(found[1]):
        raise OptionError(f"{name} {value!r}: bytes, or with a unit as in 128m")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[found[2].lower()]
