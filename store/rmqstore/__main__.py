"""``python -m rmqstore``: the command line."""

from __future__ import annotations

from rmqstore.cli.verbs import main

main(prog_name="rmqstore")
