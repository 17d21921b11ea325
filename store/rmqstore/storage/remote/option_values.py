"""Values of ``storage_options``, which may be texts."""

from __future__ import annotations

from collections.abc import Mapping

from rmqstore.errors import OptionError, about


def endpoint_of(value: object) -> tuple[str, str]:
    """Return the scheme, https if there is none, and the rest of an address."""
    scheme, separator, rest = str(value).rstrip("/").partition("://")
    return (scheme, rest) if separator else ("https", scheme)


def number(given: Mapping[str, object], name: str, default: float) -> float:
    """Return a number of seconds.

    Raises:
        OptionError: the value is not a number.
    """
    try:
        return float(str(given.get(name, default)))
    except ValueError:
        raise OptionError(
            about("storage_options", f": {name} must be a number of seconds")
        ) from None


def boolean(given: Mapping[str, object], name: str) -> bool:
    """Return whether an option is set to true; it is not by default.

    Raises:
        OptionError: the value is neither true nor false.
    """
    value = str(given.get(name, False)).lower()
    if value not in ("true", "false"):
        raise OptionError(about("storage_options", f": {name} {value!r} must be true or false"))
    return value == "true"
