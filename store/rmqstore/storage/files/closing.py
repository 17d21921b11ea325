"""What is closed where a ``with`` block ends."""

from __future__ import annotations

from typing import Self


class Closing:
    """A context manager that calls :meth:`close` at the end, whatever happened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what is open."""
        raise NotImplementedError
