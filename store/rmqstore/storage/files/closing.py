"""Objects that are closed at the end of a ``with`` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """A context manager that calls :meth:`close` at the end, even after an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what is open."""
        raise NotImplementedError
