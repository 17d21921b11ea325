"""The stream of a broker's port for replicas in controller mode; no socket.

A replica begins with a handshake, which the broker answers with the epochs of its log. After that
the replica reports as in default mode, and the header of each piece of the log also says which
epoch the piece is of.

Source: AutoSwitchHAConnection.java, AutoSwitchHAClient.java, HAConnectionState.java.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final, NamedTuple

from rmqstore.copying.following.streams.ha_stream import HaStream
from rmqstore.errors import MalformedBytesError
from rmqstore.storage.broker.epochs import Epoch

_HANDSHAKE_STATE: Final = 1
_TRANSFER_STATE: Final = 2
_NOT_FROM_LAST_FILE: Final = 0
_LEARNER: Final = 1
_HANDSHAKE: Final = struct.Struct(">ihhq")
_REPORT: Final = struct.Struct(">iq")
_EPOCH: Final = struct.Struct(">iq")
_MAX_EPOCHS: Final = 1 << 16  # brokers up to 5.5 can send 1000
_MAX_OFFSET: Final = 1 << 62
_NO_FILE: Final = -1  # where an empty log begins

GREETING_HEADER: Final = struct.Struct(">iiqi")


class Greeting(NamedTuple):
    """The answer of a broker to a handshake.

    Attributes:
        end: physical offset of the end of its log.
        epochs: the epochs of its log, rising.
    """

    end: int
    epochs: list[Epoch]


def handshake(learner_id: int) -> bytes:
    """Return the first message of a replica that stays a learner, whom nobody waits for."""
    return _HANDSHAKE.pack(_HANDSHAKE_STATE, _NOT_FROM_LAST_FILE, _LEARNER, learner_id)


def greeting_size(header: bytes) -> int:
    """Return how many bytes follow the header of the answer to a handshake.

    Raises:
        MalformedBytesError: it is not such a header.
    """
    state, size, end, _ = GREETING_HEADER.unpack(header)
    if state != _HANDSHAKE_STATE:
        raise MalformedBytesError(0, f"the broker answers a handshake with state {state}")
    if size % _EPOCH.size or not 0 <= size <= _MAX_EPOCHS * _EPOCH.size:
        raise MalformedBytesError(4, f"the broker announces {size} bytes of epochs")
    if not 0 <= end < _MAX_OFFSET:
        raise MalformedBytesError(8, f"the broker says that its log ends at {end}")
    return int(size)


def read_greeting(header: bytes, body: bytes) -> Greeting:
    """Return the answer to a handshake.

    Args:
        header: a header that :func:`greeting_size` takes.
        body: as many bytes as that says.

    Raises:
        MalformedBytesError: the epochs do not follow one another, or there is none.
    """
    _, _, end, last = GREETING_HEADER.unpack(header)
    epochs = [Epoch(*fields) for fields in _EPOCH.iter_unpack(body)]
    if not epochs:
        raise MalformedBytesError(4, "the broker has no epoch, so it was never a master")
    before = Epoch(-1, 0)
    for epoch in epochs:
        if epoch.number <= before.number or not before.start_offset <= epoch.start_offset <= end:
            raise MalformedBytesError(
                GREETING_HEADER.size,
                f"epoch {epoch.number} from {epoch.start_offset} cannot follow epoch "
                f"{before.number} from {before.start_offset} in a log that ends at {end}",
            )
        before = epoch
    if last != before.number:
        raise MalformedBytesError(16, f"the last epoch is {before.number}, not {last}")
    return Greeting(end, epochs)


class ControllerStream(HaStream):
    """Takes the bytes that a broker sends after a handshake, in any portions.

    Args:
        request: the physical offset that was asked for.
        epochs: the epochs of the broker's log by its answer to the handshake.

    Attributes:
        epochs: the same, with those that began since.
        confirm_offset: physical offset up to which no switch of masters takes records back; -1 if
            the broker has not told it.
    """

    _header_layout: ClassVar[struct.Struct] = struct.Struct(">iiqiqq")

    def __init__(self, request: int, epochs: list[Epoch]) -> None:
        super().__init__(request)
        self.epochs = list(epochs)
        self.confirm_offset = -1
        self._number = 0  # of the epoch of the last header, as an index into the epochs

    def report(self, physical_offset: int) -> bytes:
        """Return the message of a slave: an offset, which the first time is a request."""
        return _REPORT.pack(_TRANSFER_STATE, physical_offset)

    def _take_header(self, *fields: int) -> None:
        state, size, physical_offset, epoch, epoch_start, confirm_offset = fields
        if state != _TRANSFER_STATE:
            raise MalformedBytesError(0, f"the broker sends state {state} instead of its log")
        if physical_offset == _NO_FILE and self.position == size == 0:
            physical_offset = 0
        self._begin_body(physical_offset, size)
        self._take_epoch(Epoch(epoch, epoch_start), physical_offset, physical_offset + size)
        self.confirm_offset = max(confirm_offset, -1)

    def _take_epoch(self, epoch: Epoch, start: int, end: int) -> None:
        """Take the epoch that a header names.

        A piece never reaches into the next epoch. One that ends where that starts is announced as
        one of it already, because the broker switches before it writes the header.

        Args:
            epoch: the epoch.
            start: physical offset where the piece begins.
            end: physical offset where it ends.

        Raises:
            MalformedBytesError: the epochs of the log are not the ones that the broker told.
        """
        last = len(self.epochs) - 1
        while self._number < last and self.epochs[self._number].number < epoch.number:
            self._number += 1
        current = self.epochs[self._number]
        least = max(start, current.start_offset)
        is_new = epoch.number > current.number and least <= epoch.start_offset <= end
        if is_new and len(self.epochs) < _MAX_EPOCHS:
            self.epochs.append(epoch)
            self._number += 1
            return
        is_over = self._number < last and end > self.epochs[self._number + 1].start_offset
        if epoch != current or epoch.start_offset > end or is_over:
            raise MalformedBytesError(
                16,
                f"the broker sends {start} to {end} as a part of epoch {epoch.number} from "
                f"{epoch.start_offset}, which does not fit its other epochs",
            )
