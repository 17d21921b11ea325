"""What a check of a store finds."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One disagreement within a store."""

    part: str  # log, queue or index
    place: str
    text: str
