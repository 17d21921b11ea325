"""``python -m rmqstore``: the command line."""

from rmqstore.cli.common import main  # with its package, and so with all verbs

main(prog_name="rmqstore")
