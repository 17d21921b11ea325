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


def require_together(
    given: Mapping[str, object], *, all_of: tuple[str, ...] = (), never: tuple[str, ...] = ()
) -> None:
    """Refuse options that are not complete, or exclude each other.

    Args:
        given: the options that were set.
        all_of: those of which all are set or none.
        never: those of which at most one is set.

    Raises:
        OptionError: some are missing, or too many.
    """
    missing = [name for name in all_of if name not in given]
    if missing and len(missing) < len(all_of):
        needed = next(name for name in all_of if name in given)
        raise OptionError(about("storage_options", f": {needed} needs {' and '.join(missing)} too"))
    too_many = [name for name in never if name in given]
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
