"""The command line: arguments, tables, progress; no logic of its own. Messages go to stdout, all else to stderr."""

from rmqstore.cli.common import main

# isort: split
from rmqstore.cli import exchange as exchanging
from rmqstore.cli import query as looking
from rmqstore.cli import report as reporting
from rmqstore.cli import show as reading
from rmqstore.cli import verify as checking

__all__ = ["checking", "exchanging", "looking", "main", "reading", "reporting"]
