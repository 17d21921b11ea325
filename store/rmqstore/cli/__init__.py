"""The command line: arguments, tables, progress; no logic of its own. Messages go to stdout, all else to stderr."""

from rmqstore.cli.common import main  # first: it says what to install where click is missing

# isort: split
from rmqstore.cli import exchange, query, report, show, verify  # the verbs

__all__ = ["exchange", "main", "query", "report", "show", "verify"]
