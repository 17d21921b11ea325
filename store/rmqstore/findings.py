"""What checking a store finds."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One disagreement."""

    part: str  # log, queue or index
    place: str
    text: str
