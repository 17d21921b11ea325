"""Opens a RocksDB database and reads the small families that describe its content.

This is the program of a child process: a database of unknown origin may end the process that opens
it, or fill its memory. It imports nothing of this package, so that it starts quickly. macOS has no
limit of memory that it keeps to, and says so in different ways.
"""

from __future__ import annotations

import resource
import sys

_MAX_BYTES = 4 << 30
_MAX_KEYS = 1 << 20


def _main(folder: str, *small: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MAX_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MAX_BYTES)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (OSError, ValueError):
        if sys.platform == "linux":
            raise
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from rocksdict import AccessType, Options, Rdict

    families = Rdict.list_cf(folder)
    options = {name: Options(raw_mode=True) for name in families}
    read_only = AccessType.read_only(False)  # noqa: FBT003 - not even if a log of writes exists
    database = Rdict(folder, Options(raw_mode=True), options, read_only)
    for name in families:
        family = database.get_column_family(name)
        for number, _ in enumerate(family.items()):
            if number >= (_MAX_KEYS if name in small else 0):
                break
    sys.stdout.write("opened")


if __name__ == "__main__":
    _main(*sys.argv[1:])
