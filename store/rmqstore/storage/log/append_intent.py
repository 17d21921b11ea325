"""The file ``.rmqstore/append``: our own note of where an append that is not complete began."""

from __future__ import annotations

from rmqstore.storage.files.paths import StorePaths

_MAX_DIGITS = 20


def read_intent(paths: StorePaths) -> int | None:
    """Return the physical offset where an incomplete append of ours began, None without one."""
    try:
        text = paths.storage.read_bytes(paths.append_intent, _MAX_DIGITS)
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() and len(text) < _MAX_DIGITS else None


def committed_since(paths: StorePaths) -> int | None:
    """Return the physical offset of the first record whose queue and topic may be incomplete.

    It and all later records are of an append of ours. The result is None without such an append,
    and if a broker has opened the store since. The broker has dispatched the records then, so the
    note is stale, and the ``abort`` file is the broker's.
    """
    return read_intent(paths) if paths.has_our_abort else None
