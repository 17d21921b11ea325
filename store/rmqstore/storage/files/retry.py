"""Questions to a store whose retention deletes files while they are answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rmqstore.errors import FileDeletedError

logger = logging.getLogger(__name__)

_PATIENCE = 10  # files that may vanish while one question is answered

P = ParamSpec("P")
T = TypeVar("T")


class Refreshable(Protocol):
    """What lists files and can do so anew."""

    def refresh(self) -> None: ...


R = TypeVar("R", bound=Refreshable)


def anew_if_deleted(ask: Callable[Concatenate[R, P], T]) -> Callable[Concatenate[R, P], T]:
    """Ask again, of the files that are left, where retention deleted one that an answer was to come from."""

    @wraps(ask)
    def asked(asked_of: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(_PATIENCE):
            try:
                return ask(asked_of, *args, **kwargs)
            except FileDeletedError as err:
                logger.info("%s; asking the files that are left", err)
                asked_of.refresh()
        return ask(asked_of, *args, **kwargs)

    return asked
