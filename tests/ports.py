"""Ports that servers of tests listen on."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator

# Below the ports that the kernel gives to clients: none of these can take one of ours between the
# moment at which it was found free and the moment at which the server listens on it.
_FIRST, _LAST = 12_000, 32_000
_STEP = 4  # a broker also takes the port two below its own
_places: Iterator[int] = itertools.cycle(range(_FIRST, _LAST, _STEP))
# Processes that run tests side by side begin at different places.
for _ in range(random.randrange((_LAST - _FIRST) // _STEP)):
    next(_places)


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, each with two free ports directly below it.

    No port is returned again before thousands of others have been.
    """
    fitting = (
        start + 2
        for start in itertools.islice(_places, (_LAST - _FIRST) // _STEP)
        if all(map(_is_free, range(start, start + 3)))
    )
    found = list(itertools.islice(fitting, count))
    assert len(found) == count, "no ports are free"
    return found
