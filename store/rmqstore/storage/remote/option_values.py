"""Values of ``storage_options``, which may be texts."""

from __future__ import annotations

from collections.abc import Mapping

from rmqstore.errors import OptionError, about


def endpoint_of(value: object) -> tuple[str, str]:
    """Return the scheme, https if there is none, and the rest of an address.

    Raises:
        OptionError: it is not an address of HTTP. The text is not shown, as it may have secrets.
    """
    scheme, separator, rest = str(value).rstrip("/").partition("://")
    if not separator:
        scheme, rest = "https", scheme
    if scheme.lower() not in ("http", "https") or not rest or "@" in rest:
        raise OptionError(
            about("storage_options", ": endpoint must be like http://host:9000 or https://host")
        )
    return scheme.lower(), rest


def require_all_or_none(given: Mapping[str, object], *names: str) -> None:
    """Refuse options of which only some are set.

    Args:
        given: the options that were set.
        names: those that go together.

    Raises:
        OptionError: some of them are missing.
    """
    missing = [name for name in names if name not in given]
    if missing and len(missing) < len(names):
        needed = next(name for name in names if name in given)
        raise OptionError(about("storage_options", f": {needed} needs {' and '.join(missing)} too"))


def require_at_most_one(given: Mapping[str, object], *names: str) -> None:
    """Refuse options that exclude each other.

    Args:
        given: the options that were set.
        names: those of which one may be set.

    Raises:
        OptionError: several of them are.
    """
    too_many = [name for name in names if name in given]
    if len(too_many) > 1:
        raise OptionError(
            about("storage_options", f": {' and '.join(too_many)} exclude each other")
        )


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
