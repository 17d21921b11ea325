"""The command line: arguments, tables and progress, without logic of its own.

Messages and tables go to stdout, everything else to stderr.
"""

from rmqstore.cli.common import main  # first, because it says what to install if click is missing

# isort: split
from rmqstore.cli import (  # the verbs
    cluster,
    copy,
    doctor,
    exchange,
    query,
    report,
    show,
    verify,
    views,
)

__all__ = [
    "cluster",
    "copy",
    "doctor",
    "exchange",
    "main",
    "query",
    "report",
    "show",
    "verify",
    "views",
]
