"""Other bytes in files of a store."""

from __future__ import annotations

import random
from pathlib import Path


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def damage(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    at = rng.randrange(len(damaged))
    kind = rng.randrange(3)
    if kind == 0:
        damaged[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        damaged[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), rng.randbytes(8)])
    else:
        del damaged[at:]
    return bytes(damaged)
