"""This Linux as macOS or Windows: what they lack is taken away before the package is imported.

``RMQSTORE_SIMULATE=darwin`` or ``win32`` in the environment asks for it, and ``conftest.py``
imports this module first. ``rmqstore.platforms`` then sees the name of that system, and all of this
process is without the functions, constants and modules in :data:`LACKS`. What stays is the kernel:
Linux's file systems, locks and sockets, paths with ``/``, and files that can be deleted while they
are open. So this shows that no call is made that is not there, and that the slower ways are right.
It does not show what only a Mac or a Windows computer can: see docs/install.md. Processes that a
test starts are Linux again. Where Windows is simulated, the stores that tests read are still
written, by ``Disk`` and ``StoreLock`` as on Linux; ``systems/test_windows.py`` asks what is not.

``simulated.toml`` names the cases that do not hold there, each below its reason. On a real computer
of that kind the same cases are skipped.
"""

from __future__ import annotations

import ctypes  # noqa: F401 - these look at the name of the system when they are imported
import errno  # noqa: F401
import importlib
import importlib.util
import mmap  # noqa: F401
import os
import pathlib
import select  # noqa: F401
import shutil
import socket  # noqa: F401
import sys
import tempfile
import threading  # noqa: F401
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any, Final

import pytest

SIMULATED: Final = os.environ.get("RMQSTORE_SIMULATE", "")
SYSTEM: Final = SIMULATED or sys.platform
TABLE: Final = pathlib.Path(__file__).with_suffix(".toml")
NAMES: Final = {"darwin": "macOS", "win32": "Windows"}

# What Python lacks there, by module. Sources: the notes on availability in Python's own manual, and
# for macOS those of its oldest release that Python 3.11 runs on.
_NOT_ON_MACOS: Final = {
    "os": """
        O_DIRECT O_TMPFILE RWF_APPEND RWF_DSYNC RWF_HIPRI RWF_NOWAIT RWF_SYNC SEEK_DATA SEEK_HOLE
        POSIX_FADV_DONTNEED POSIX_FADV_NOREUSE POSIX_FADV_NORMAL POSIX_FADV_RANDOM
        POSIX_FADV_SEQUENTIAL POSIX_FADV_WILLNEED copy_file_range eventfd fdatasync getxattr
        listxattr memfd_create posix_fadvise posix_fallocate preadv pwritev removexattr
        sched_getaffinity sched_setaffinity setxattr splice
    """,
    "mmap": "MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DODUMP MADV_DONTDUMP MADV_REMOVE MAP_POPULATE",
    "select": "EPOLLIN EPOLLOUT epoll",
    "socket": "TCP_CORK TCP_INFO TCP_QUICKACK TCP_USER_TIMEOUT",
}
_NOT_ON_WINDOWS: Final = {
    "os": """
        O_CLOEXEC O_DIRECTORY O_DSYNC O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC fchown fstatvfs lockf
        pread pwrite readv statvfs sync writev
    """,
    "mmap": """
        MADV_DONTNEED MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MAP_ANON MAP_ANONYMOUS MAP_PRIVATE
        MAP_SHARED PROT_EXEC PROT_READ PROT_WRITE
    """,
    "select": "POLLERR POLLHUP POLLIN POLLNVAL POLLOUT poll",
}
MODULES: Final = {"darwin": (), "win32": ("fcntl", "resource")}


def _together(*tables: dict[str, str]) -> dict[str, set[str]]:
    return {
        module: {name for table in tables for name in table.get(module, "").split()}
        for table in tables
        for module in table
    }


LACKS: Final = {
    "darwin": _together(_NOT_ON_MACOS),
    "win32": _together(_NOT_ON_MACOS, _NOT_ON_WINDOWS),
}
WRITERS: Final = ("disk", "lock", "scratch")  # modules of rmqstore.storage.files
_F_FULLFSYNC: Final = 51


def _begin(system: str) -> None:
    assert "rmqstore" not in sys.modules, "the package was imported before its system was chosen"
    linux = None
    if system == "win32":
        linux = _linux()
        for name in ("pandas", "polars"):  # which look at this computer when they are imported
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)
    # The standard library noted at its import that it has these.
    tempfile._O_TMPFILE_WORKS = False
    shutil._copyxattr = lambda *_args, **_kwargs: None
    shutil._use_fd_functions = False
    for module, names in LACKS[system].items():
        for name in names:
            if hasattr(sys.modules[module], name):
                delattr(sys.modules[module], name)
    for name in MODULES[system]:
        sys.modules[name] = None  # type: ignore[assignment]  # which makes its import fail
    if system == "darwin":
        _flush_as_macos()
    else:
        os.O_BINARY = os.O_NOINHERIT = 0  # type: ignore[attr-defined]
    real, sys.platform = sys.platform, system
    try:
        platforms = importlib.import_module("rmqstore.platforms")
    finally:
        sys.platform = real
    assert NAMES[system] == platforms.NAME
    # Its own layout is in test_platforms.py; the kernel that answers is Linux.
    platforms._FLOCK = platforms._LINUX_FLOCK
    if linux is not None:
        for name in WRITERS:
            module = importlib.import_module(f"rmqstore.storage.files.{name}")
            module.platforms, module.os = linux, linux.os  # type: ignore[attr-defined]


class _Whole:
    """A module as it is, with what is taken away from it later."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._before = module, dict(vars(module))

    def __getattr__(self, name: str) -> Any:
        return vars(self._module).get(name, self._before.get(name))


def _linux() -> ModuleType:
    """Return the module of this system, with all that it has, for what tests write."""
    import fcntl

    platforms = importlib.import_module("rmqstore.platforms")
    for name in LACKS["win32"]:
        setattr(platforms, name, _Whole(sys.modules[name]))

    def is_locked(descriptor: int) -> bool:
        request = platforms._LINUX_FLOCK.layout.pack(fcntl.F_WRLCK, 0, 0, 1, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, request)
        return platforms._LINUX_FLOCK.layout.unpack(answer)[0] != fcntl.F_UNLCK

    def lock(descriptor: int) -> None:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)

    platforms.is_first_byte_locked, platforms.lock_first_byte = is_locked, lock  # type: ignore[attr-defined]
    del sys.modules["rmqstore.platforms"], sys.modules["rmqstore"].platforms  # type: ignore[attr-defined]
    return platforms


def _flush_as_macos() -> None:
    """Let the request of macOS that flushes a disk reach ``os.fsync``."""
    import fcntl

    real = fcntl.fcntl

    def asked(descriptor: Any, request: int, *args: Any) -> Any:
        if request != _F_FULLFSYNC:
            return real(descriptor, request, *args)
        os.fsync(descriptor)
        return 0

    fcntl.F_FULLFSYNC = _F_FULLFSYNC  # type: ignore[attr-defined]
    fcntl.fcntl = asked  # type: ignore[assignment]


def _listed() -> list[tuple[str, str]]:
    """Return the patterns for this system, or for the simulated one, and their reasons."""
    if SYSTEM not in NAMES:
        return []
    tables = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    reasons = tables[SYSTEM] if SIMULATED else tables[SYSTEM] | tables["real"]
    return [(pattern, reason) for reason, patterns in reasons.items() for pattern in patterns]


def folders_left_out() -> dict[str, str]:
    """Return the folders in the table, with their reasons: their modules may not even import."""
    return {pattern: reason for pattern, reason in _listed() if pattern.endswith("/")}


def skip_what_does_not_hold(items: Iterable[pytest.Item], *, is_all: bool) -> None:
    """Skip the cases that ``simulated.toml`` names for this system, or for the simulated one.

    Args:
        items: the cases that were collected.
        is_all: whether all cases of their files were.

    Raises:
        UsageError: a name in the table belongs to none of the cases.
    """
    listed = _listed()
    unused, files = {pattern for pattern, _ in listed}, set()
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        files.add(name.partition("::")[0])
        for pattern, reason in listed:
            if _names(pattern, name):
                unused.discard(pattern)
                item.add_marker(pytest.mark.skip(reason=f"{NAMES[SYSTEM]}: {reason}"))
                break
    stale = sorted(pattern for pattern in unused if pattern.partition("::")[0] in files)
    if stale and is_all:
        raise pytest.UsageError(f"{TABLE.name}, {SYSTEM}: no such case: {', '.join(stale)}")


def _names(pattern: str, case: str) -> bool:
    """Return whether a pattern means a case: it is a file, a test, or has ``*`` in it."""
    if "*" in pattern:
        return fnmatchcase(case, pattern.replace("[", "[[]"))
    return pattern in (case, case.partition("[")[0], case.partition("::")[0])


if SIMULATED:
    _begin(SIMULATED)
