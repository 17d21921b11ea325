"""The epochs of a broker in controller mode: which part of its log each master wrote.

Two replicas agree up to the end of the last epoch that both have, with the same start.

Source: EpochFileCache.java, CheckpointFile.java.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from rmqstore.errors import CorruptConfigError, NotPermittedError, UnreadableFileError
from rmqstore.format.hashing import body_crc
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.storage import read_small

logger = logging.getLogger(__name__)

_MAX_BYTES: Final = 16 << 20
_LINE: Final = re.compile(r"(\d{1,10})-(\d{1,19})", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,10}", re.ASCII)
_MAX_NUMBER: Final = (1 << 31) - 1
_MAX_OFFSET: Final = (1 << 63) - 1
_JAVA_NUMBER: Final = re.compile(r"[+-]?\d{1,40}")
_JAVA_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_NOT_CHECKED: Final = 0  # as the CRC of a file


class Epoch(NamedTuple):
    """An epoch, which ends at the start of the next one, the last one at the end of the log."""

    number: int
    start_offset: int  # physical


def read_epochs(paths: StorePaths) -> list[Epoch]:
    """Return the epochs of a store, rising; none without controller mode.

    If the file is damaged, the one that the broker wrote before is read.

    Raises:
        CorruptConfigError: both are damaged.
    """
    newest = paths.epochs
    damages: dict[Path, CorruptConfigError | UnreadableFileError] = {}
    for file in _files(paths):
        try:
            epochs = _parse(file, read_small(paths.storage, file, _MAX_BYTES))
        except FileNotFoundError:
            continue
        except (CorruptConfigError, UnreadableFileError) as err:
            damages[file] = err
            continue
        if epochs:
            for damage in damages.values():
                logger.warning("%s; the epochs are read from %s", damage, file)
            return epochs
    if newest in damages:
        damage = damages[newest]
        reason = damage.reason if isinstance(damage, CorruptConfigError) else str(damage)
        raise CorruptConfigError(str(newest), 0, reason) from damage
    for damage in damages.values():
        logger.warning("%s", damage)
    return []


def why_not_started(paths: StorePaths) -> CorruptConfigError | None:
    """Return the damage of epochs with which a broker in controller mode does not start.

    If a file is damaged or has no epoch, it reads the one before. But text in the place of a number
    ends it.

    Source: CheckpointFile.java#read, EpochFileCache.java#initCacheFromFile.
    """
    for file in _files(paths):
        try:
            stored = read_small(paths.storage, file, _MAX_BYTES)
        except NotPermittedError:  # which a broker may read
            return None
        except (FileNotFoundError, UnreadableFileError):
            continue
        text = _no_number(stored)
        if text is not None:
            return CorruptConfigError(str(file), 0, f"{text!r} stands in the place of a number")
        with suppress(CorruptConfigError):
            if _parse(file, stored):
                return None
    return None


def _files(paths: StorePaths) -> tuple[Path, Path]:
    """Return the file of the epochs, and the one that the broker wrote before."""
    return paths.epochs, paths.epochs.with_name(f"{paths.epochs.name}.bak")


def _no_number(stored: bytes) -> str | None:
    """Return the first text that a broker takes for a number and that is none; None without one."""
    try:
        count, crc, *listed = [*_JAVA_LINE_END.split(stored.decode()), ""]
    except UnicodeDecodeError:
        return None  # it does not read such a file
    numbers = [(count, _MAX_NUMBER), (crc, _MAX_NUMBER)]
    for line in listed:
        parts = line.rstrip("-").split("-")
        if len(parts) == 2:
            numbers += [(parts[0], _MAX_NUMBER), (parts[1], _MAX_OFFSET)]
    for text, largest in numbers:
        if not _JAVA_NUMBER.fullmatch(text) or not -largest - 1 <= int(text) <= largest:
            return text
    return None


def stored_epochs(epochs: Sequence[Epoch]) -> bytes:
    """Return the bytes of a file of epochs, at least one."""
    listed = "".join(f"{epoch.number}-{epoch.start_offset}\n" for epoch in epochs).encode()
    return b"%d\n%d\n" % (len(epochs), body_crc(listed)) + listed


def _parse(file: Path, stored: bytes) -> list[Epoch]:
    """Return the epochs in the text of a file.

    Raises:
        CorruptConfigError: the text is not a list of epochs with the right CRC.
    """
    head, _, rest = stored.partition(b"\n")
    checksum, _, listed = rest.partition(b"\n")
    numbers = [line.decode("ascii", "replace").strip() for line in (head, checksum)]
    if not all(_NUMBER.fullmatch(number) for number in numbers):
        raise CorruptConfigError(
            str(file), 0, "does not begin with a number of epochs and their CRC"
        )
    count, crc = map(int, numbers)
    actual = body_crc(listed)
    if crc not in (_NOT_CHECKED, actual):
        raise CorruptConfigError(str(file), len(head) + 1, f"CRC {crc} is not {actual}")
    epochs: list[Epoch] = []
    position = len(stored) - len(listed)
    for line in listed.decode("ascii", "replace").splitlines():
        match = _LINE.fullmatch(line)
        epoch = Epoch(*map(int, match.groups())) if match else None
        if epoch is None or epoch.number > _MAX_NUMBER or epoch.start_offset > _MAX_OFFSET:
            raise CorruptConfigError(
                str(file), position, f"{line!r} is not an epoch and where it starts"
            )
        if epochs and (
            epoch.number <= epochs[-1].number or epoch.start_offset < epochs[-1].start_offset
        ):
            raise CorruptConfigError(
                str(file), position, f"epoch {epoch.number} does not follow {epochs[-1].number}"
            )
        epochs.append(epoch)
        position += len(line) + 1
    if len(epochs) != count:
        raise CorruptConfigError(str(file), 0, f"{len(epochs)} epochs, not {count}")
    return epochs
