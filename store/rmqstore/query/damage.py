"""What a read does about damage and lost records, of stores and of Kafka's logs alike."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from rmqstore.errors import OffsetOutOfRangeError, OptionError, rendered

logger = logging.getLogger(__name__)

Mode: TypeAlias = Literal["FAILFAST", "DROPMALFORMED", "PERMISSIVE"]

CORRUPT_RECORD: Final = "_corrupt_record"  # the column that says what is wrong with a record
READS_ON: Final = "`fail_on_data_loss=False`"  # what errors of lost records advise
FAILFAST, DROPMALFORMED, PERMISSIVE = MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageRules:
    """What a read does about damage and lost records.

    Attributes:
        mode: what is done with damaged records.
        corrupt_column: the column that says what is wrong with one, in the mode PERMISSIVE.
        check_crc: whether a record whose CRC is wrong counts as damaged.
        fail_on_data_loss: whether it is an error if chosen records are gone.
    """

    mode: str = FAILFAST
    corrupt_column: str = CORRUPT_RECORD
    check_crc: bool = True
    fail_on_data_loss: bool = True

    def __post_init__(self) -> None:
        """Refuse unknown modes."""
        if self.mode not in MODES:
            raise OptionError(f"`mode` {self.mode!r}: one of {', '.join(MODES)}")

    def report_loss(
        self, text: str, remedy: str = f"{READS_ON} reads on", instead: str = ""
    ) -> None:
        """Report that chosen records are gone, in these words.

        Args:
            text: what is gone, and why.
            remedy: what to do about it, for the error.
            instead: what is done if data loss is not to fail, for the warning.

        Raises:
            OffsetOutOfRangeError: data loss is to fail.
        """
        text = f"data loss: {text}"
        if self.fail_on_data_loss:
            raise OffsetOutOfRangeError(f"{text}; {remedy}")
        logger.warning("%s", rendered(f"{text}; {instead}" if instead else text))
