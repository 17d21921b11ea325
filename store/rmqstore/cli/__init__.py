"""The command line: arguments, tables and progress, without logic of its own.

Messages and tables go to stdout, everything else to stderr.
"""

from rmqstore.cli.common import main  # first, because it says what to install if click is missing

# isort: split
from rmqstore.cli import (  # the verbs
    copy,
    exchange,
    follow,
    kafka,
    query,
    show,
    verify,
    views,
)

__all__ = [
    "copy",
    "exchange",
    "follow",
    "kafka",
    "main",
    "query",
    "show",
    "verify",
    "views",
]
