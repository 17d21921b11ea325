"""The verbs, each with its purpose and module, and the command above them.

A verb's module is imported when the verb is called, so that ``rmqstore --help`` imports neither
pyarrow nor a reader.
"""

from __future__ import annotations

import gc
import logging
import sys
from difflib import get_close_matches
from importlib import import_module
from inspect import cleandoc
from textwrap import dedent
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmqstore.errors import install

try:
    import click
    from rich.text import Text
    from rich_click import RichGroup, RichHelpConfiguration
except ImportError as err:  # pragma: no cover - the message is the point
    needed = f"the command line needs click, rich and rich-click: {install('cli')}"
    print(f"{needed} ({err})", file=sys.stderr)  # noqa: T201
    raise SystemExit(2) from err

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERRUPTED: Final = 130  # the exit code after SIGINT


class Verb(NamedTuple):
    """A verb: the module of this package that has it, and the first sentence of its help."""

    module: str
    summary: str


# By the groups in which the help shows them.
_GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "See what a store is": {
        "describe": "Show what a store is: kind, broker, state, sizes of files, where its log "
        "begins and ends.",
        "stat": "Show queues: offsets, number of messages, bytes, first and last store time.",
        "topics": "Show topics: queues, messages, bytes, first and last store time, numbers of "
        "queues, perm.",
        "groups": "Show what consumer groups have consumed of each queue, and their lag.",
        "brokers": "Show whose stores these are, where their logs begin and end, and which "
        "replicas are read.",
        "view": "Show a view of one store, or of the stores of several brokers.",
        "assign": "Show which client of a group would own which queue, and with what backlog.",
        "routes": "Show what a name server answers for each topic, as far as its brokers' stores "
        "show it.",
    },
    "Read messages": {
        "dump": "Write messages as JSON Lines. A body that is not UTF-8 is written as bodyBase64.",
        "get": "Show the messages that IDs name: physical offsets, offset message ids or unique "
        "keys.",
        "query": "Find messages by key, id or tags, through the index; or queue offsets by time.",
        "trace": "Show what became of a message: its records, and which groups have passed them.",
        "export": "Write messages to TARGET, a file whose name ends in .parquet, .jsonl, .json or "
        ".csv.",
    },
    "Check": {
        "verify": "List every disagreement between CommitLog, ConsumeQueues and IndexFiles.",
        "report": "Write a page about stores: topics, rates, queues, groups, files and findings "
        "of verify.",
        "doctor": "Look for what reading and writing takes: Python, packages, Java, Spark, and "
        "the store PATH.",
    },
    "Change and copy": {
        "rebuild": "Build ConsumeQueues and IndexFiles again from the CommitLog.",
        "import": "Append all rows of SOURCES to the store at PATH, or after an error none of "
        "them.",
        "copy": "Copy the store at PATH, which may be in use, to the new folder TARGET.",
        "follow": "Keep an exact copy of a live broker's log in the folder TARGET.",
    },
    "Other brokers": {
        "kafka": "Read log directories of Apache Kafka, without a broker. Nothing is changed.",
    },
}
# The verbs of a module that has another name than they; all others have one of their own name.
_SHARED: Final = {
    "exchange": ("import",),
    "query": ("get", "trace"),
    "show": ("stat", "dump", "export"),
    "verify": ("doctor", "rebuild"),
    "views": ("describe", "topics", "groups", "brokers", "view", "assign", "routes"),
}
_MODULES: Final = {name: module for module, names in _SHARED.items() for name in names}
VERBS: Final = {
    name: Verb(_MODULES.get(name, name), summary)
    for group in _GROUPS.values()
    for name, summary in group.items()
}
_OPTION_GROUPS: Final[dict[str, list[str]]] = {
    "Options": [],  # what is in no other group; they come first
    "Which store": [
        "--conf", "--brokers", "--commitlog", "--consumequeue", "--index", "--dledger-log",
        "--dledger-self-id", "--tiered", "--storage-option",
    ],
    "Output": [
        "--format", "--json", "--output", "--overwrite", "--limit", "--times", "--tz",
        "--wide", "--fail-if-empty", "--quiet",
    ],
}  # fmt: skip
# What other tools call a verb.
_MEANT: Final = {
    "cat": "dump", "head": "dump -n 10", "ls": "topics", "search": "query", "tail": "dump --follow",
}  # fmt: skip


class Verbs(RichGroup):
    """Verbs. The examples that their docstrings end with stand under their help."""

    main = click.Group.main  # errors stay one line, for logs and scripts

    def add_command(self, cmd: click.Command, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Add a verb."""
        for option in cmd.params:  # without it rich-click 1.9 repeats all options under Options
            option.panel = None  # type: ignore[attr-defined]
        cmd.help, _, examples = cleandoc(cmd.help or "").partition("\n\nExamples:\n")
        text = f"Examples\n{dedent(examples)}".replace("\n", "\n  ")
        cmd.epilog = Text(text)  # type: ignore[assignment] # which keeps the lines as they are
        super().add_command(cmd, *args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click has it
        """Run a verb; after an interrupt, exit with the code of shells."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


class AllVerbs(Verbs):
    """The verbs of :data:`VERBS`, each of which is imported when it is called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        return [*VERBS]

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb, of one whose module is not imported yet its name and summary alone."""
        if cmd_name in VERBS and cmd_name not in self.commands:
            return click.Command(cmd_name, short_help=VERBS[cmd_name].summary)
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that arguments name, whole, and the arguments after it."""
        if args and args[0] in VERBS:
            self.verb(args[0])
        elif args and not args[0].startswith("-"):
            near = _MEANT.get(args[0]) or "".join(get_close_matches(args[0], VERBS, 1))
            hint = f"; did you mean rmqstore {near}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def verb(self, name: str) -> click.Command:
        """Return a verb of :data:`VERBS`, whole.

        Collections of garbage while modules are imported, and over them later, find nothing and
        take a fifth of the time of a small command, so what is there then is left out of them.
        """
        if name not in self.commands:
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                import_module(f"rmqstore.cli.{VERBS[name].module}")
                gc.freeze()
            finally:
                if was_enabled:
                    gc.enable()
        return self.commands[name]


_HELP: Final = RichHelpConfiguration(
    command_groups={"*": [{"name": name, "commands": [*verbs]} for name, verbs in _GROUPS.items()]},
    option_groups={
        "*": [{"name": name, "options": flags} for name, flags in _OPTION_GROUPS.items()]
    },
)


@click.group(
    cls=AllVerbs,
    context_settings={"help_option_names": ["-h", "--help"], "rich_help_config": _HELP},
)
@click.version_option(package_name="pyspark-rmqstore")
def main() -> None:
    """Work on the files of an Apache RocketMQ store without a broker.

    Only rebuild and import change the store.
    """
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr
    )
