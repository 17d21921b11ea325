"""Paths in options, which are absolute or URIs for every process of Spark."""

from __future__ import annotations

import os
import re
from typing import Final

from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.options import GivenOptions
from rmqstore.storage.files.remote_location import is_uri, local_path, made_absolute, require_known
from rmqstore.storage.files.storage import path_of

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def user_paths(given: GivenOptions, remedy: str) -> list[str]:
    """Return the paths that the options name, at least one.

    Args:
        given: the options.
        remedy: what to do if no path is named, for the error.

    Raises:
        OptionError: no path is named.
    """
    if not given.paths:
        raise OptionError(f"path is missing: {remedy}")
    return given.paths


def absolute_path(path: str) -> str:
    """Return an absolute local path, which a ``file:`` URI may name; refuse other URIs."""
    absolute = made_absolute(path)  # which refuses the address of a server with what to write
    if _SCHEME.match(os.fspath(local_path(path))):
        raise UnsupportedFeatureError(
            f"path {path!r}: only local files are supported, by a path or as file:///…"
        )
    return absolute


def store_path(path: str) -> str:
    """Return the absolute path of a store to read, or its URI in another file system."""
    require_known(path)
    return str(path_of(path.rstrip("/"))) if is_uri(path) else absolute_path(path)
