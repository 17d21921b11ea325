"""The command line: arguments, tables and progress, without logic of its own.

Messages and tables go to stdout, everything else to stderr.
"""

from rmqstore.cli.verbs import main

__all__ = ["main"]
