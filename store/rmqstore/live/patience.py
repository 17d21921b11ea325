"""How long to wait for servers that do not answer, or are too busy.

One rule holds for plans, reads and sends: another attempt is made after a pause, until attempts
have failed for two minutes.

Source: BrokerFastFailure.java; NettyRemotingAbstract.java#processRequestCommand.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from rmqstore.errors import RmqStoreError
from rmqstore.remoting import ResponseCode

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 120.0
_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0)

# The server has not begun to do what it was asked for.
BUSY: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY)
# Brokers of RocketMQ 4 refuse by SYSTEM_ERROR what others have a code for: a user who may not do
# what is asked for, and a queue that may not be read.
_REFUSALS: Final = ("AclException", "is illegal", "is illagal")


def is_passing(code: int, remark: str) -> bool:
    """Return whether the request may succeed later, by the answer of a server.

    It is busy, or has failed.
    """
    if code == ResponseCode.SYSTEM_ERROR:
        return not any(map(remark.count, _REFUSALS))
    return code in BUSY


class Patience:
    """Attempts that fail, one after the other, and how long they may.

    Args:
        seconds: that they may fail for; as long as every server is waited for by default.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = PATIENCE_SECONDS if seconds is None else seconds
        self._failed_at: float | None = None  # when the first of them failed
        self._n_pauses = 0

    def renew(self) -> None:
        """Begin again after an attempt that succeeded."""
        self._failed_at = None
        self._n_pauses = 0

    def has_ended(self) -> bool:
        """Note that an attempt failed, and return whether attempts have failed for too long."""
        now = time.monotonic()
        if self._failed_at is None:
            self._failed_at = now
        return now - self._failed_at > self._seconds

    def pause(self, err: RmqStoreError) -> None:
        """Wait for the next attempt after one that failed.

        Raises:
            RmqStoreError: attempts have failed for too long; it is the error that is given.
        """
        if self.has_ended():
            raise err
        logger.info("%s; trying again", err)
        time.sleep(_PAUSES[min(self._n_pauses, len(_PAUSES) - 1)])
        self._n_pauses += 1
