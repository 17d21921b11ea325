"""The directive ``command-reference``: what a verb of the command line takes, asked of click."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import click
from docutils import nodes
from docutils.parsers.rst import Directive

from rmqstore.cli import main
from rmqstore.cli.verbs import VERBS

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class CommandReference(Directive):
    """Shows the usage line, the help text and a table of the options of one verb."""

    required_arguments: ClassVar[int] = 1
    final_argument_whitespace = True  # for a verb of a group

    def run(self) -> list[nodes.Node]:
        """Return the nodes; an unknown verb is an error of the build."""
        verb = self.arguments[0]
        name, *rest = verb.split()
        command = main.verb(name) if name in VERBS else None
        for word in rest:
            command = command.commands.get(word) if isinstance(command, click.Group) else None
        if command is None:
            raise self.error(f"rmqstore has no verb {verb!r}")
        context = click.Context(command, info_name=f"rmqstore {verb}")
        usage = " ".join([f"rmqstore {verb}", *command.collect_usage_pieces(context)])
        help_texts = [" ".join(text.split()) for text in (command.help or "").split("\n\n")]
        return [
            nodes.literal_block(usage, usage, language="text"),
            *(nodes.paragraph(text, text) for text in help_texts),
            _table(_options(command, context)),
        ]


def _options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """Return the names of each option, with its type, and its help text, with its default."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    records = [option.get_help_record(context) for option in options]
    return [record for record in records if record is not None]


def _table(options: list[tuple[str, str]]) -> nodes.table:
    group = nodes.tgroup("", nodes.colspec(colwidth=35), nodes.colspec(colwidth=65), cols=2)
    group += nodes.thead("", _row(nodes.Text("option"), nodes.Text("meaning")))
    rows = [_row(nodes.literal(names, names), nodes.Text(meaning)) for names, meaning in options]
    group += nodes.tbody("", *rows)
    return nodes.table("", group)


def _row(*cells: nodes.Node) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True}
