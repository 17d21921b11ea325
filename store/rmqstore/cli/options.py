"""The options of the command line: a row for each, and the decorator by which a verb names its own.

A row that stands for an option of ``rmqstore.query.options`` takes from there what it is, which
words it takes and which of them is the default. The verbs about Kafka's logs, and the one that
follows brokers, have rows of their own in their modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from rmqstore.cli.parameters import (
    Named,
    NewFile,
    StoreFolder,
    complete_groups,
    complete_topics,
    enter_zone,
    keep,
    keep_confs,
    keep_pairs,
    key_values,
    negated,
    queue_offset,
)
from rmqstore.exchange.bodies import FORMS
from rmqstore.exchange.files import FORMATS, INPUT_FORMATS
from rmqstore.query.allocation import STRATEGIES
from rmqstore.query.options import OPTION_OF_ARGUMENT, OneOf, boolean

Command = Callable[..., None]
ISO = "iso"  # how times are written
MILLIS = "ms"
EMPTY: Final = 3  # the exit code of --fail-if-empty
TABLE = "table"
JSON = "json"
PRETTY = "pretty"
FILE_FORMATS: Final = (*FORMATS, JSON)  # those that are not for people
TIMES: Final = "epoch ms, ISO-8601 or -1h"
REPEATED: Final = "may be repeated"


class Flag:
    """A row: an option of the command line.

    Its name in the table is that of the verb's parameter, and of the argument of Python that it
    stands for.
    """

    def __init__(
        self,
        declarations: str,
        doc: str = "",
        *,
        more: str = "",
        argument: str = "",
        **settings: Any,  # noqa: ANN401 - as click has it
    ) -> None:
        """Describe an option.

        Args:
            declarations: how it is typed, such as ``-t --topic``.
            doc: what it is, if it does not stand for an option of the core.
            more: what its help adds.
            argument: the argument of Python that it stands for, if that has another name.
            settings: what click has to know besides.
        """
        self._declarations = declarations.split()
        self._doc = doc
        self._more = more
        self._argument = argument
        self._settings = settings

    def added_to(self, command: Command, name: str, more: str | None) -> Command:
        """Return a command that takes the option.

        Args:
            command: a verb.
            name: that of the row.
            more: what the help of this verb adds, if not the same as others.
        """
        settings = dict(self._settings)
        doc = self._doc
        argument = self._argument or name
        option = OPTION_OF_ARGUMENT.get(argument)
        if not doc and option is not None:
            doc = option.doc
            if option.parse is boolean:
                settings["is_flag"] = True
            elif isinstance(option.parse, OneOf):
                settings |= {"type": click.Choice(option.parse.words), "default": option.default}
        if more is None:
            more = self._more
        text = "; ".join(filter(None, (doc, more)))
        text = text.replace("`path`", "PATH").replace("`", "")
        return click.option(
            *self._declarations,
            name,
            cls=Named,
            argument=argument,
            help=f"{text[0].upper()}{text[1:]}.",
            show_default="default" in settings,
            **settings,
        )(command)


def options(
    *names: str, table: Mapping[str, Flag] | None = None, **added: str
) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a verb; its help shows them in this order.

    Args:
        names: those of rows.
        table: where the rows are; by default :data:`FLAGS`.
        added: what the help of this verb adds to an option, in place of what the row says.
    """
    rows = FLAGS if table is None else table
    texts = dict.fromkeys(names) | added

    def add(command: Command) -> Command:
        for name, more in reversed(texts.items()):
            command = rows[name].added_to(command, name, more)
        return command

    return add


_SEVERAL: Final = "PATH may be left out then; may be repeated, for several brokers"
POSITIVE: Final = click.IntRange(min=1)
NEW_FILE: Final = NewFile()
_BROKER_FILE: Final[Mapping[str, Any]] = {
    "metavar": "FILE",
    "is_eager": True,  # the path may come from it
    "expose_value": False,
    "callback": keep_confs,
}
_FOLDER: Final[Mapping[str, Any]] = {"metavar": "FOLDER", "expose_value": False, "callback": keep}

FLAGS: Final[dict[str, Flag]] = {
    # Which store
    "conf": Flag("-c --conf", more="PATH may be left out then", **_BROKER_FILE),
    "confs": Flag(
        "-c --conf", more=_SEVERAL, argument="conf", multiple=True, **_BROKER_FILE
    ),
    "confs_beside_clients": Flag(
        "--conf", more=_SEVERAL, argument="conf", multiple=True, **_BROKER_FILE
    ),
    "brokers": Flag(
        "--brokers", more="a .json or .toml file, or a JSON object", metavar="FILE",
        is_eager=True,  # an id may be the first word then
        expose_value=False, callback=keep,
    ),
    "commitlogs": Flag("--commitlog", more=REPEATED, multiple=True, **_FOLDER),
    "consumequeue": Flag("--consumequeue", **_FOLDER),
    "index": Flag("--index", **_FOLDER),
    "dledger_logs": Flag("--dledger-log", more=REPEATED, multiple=True, **_FOLDER),
    "dledger_self_id": Flag("--dledger-self-id", metavar="ID", expose_value=False, callback=keep),
    "tiered": Flag("--tiered", type=StoreFolder(is_local=True), **_FOLDER),
    "storage_options": Flag(
        "--storage-option", more="once for each key, such as region=eu-west-1", metavar="KEY=VALUE",
        multiple=True, expose_value=False, callback=keep_pairs,
    ),
    "ignore_log_end": Flag("--ignore-log-end"),
    # Which messages
    "topics": Flag(
        "-t --topic", "only this topic", more="also a pattern such as 'Order*'; may be repeated",
        argument="subscribe", multiple=True, shell_complete=complete_topics,
    ),
    "include_system_topics": Flag("--all"),
    "queue_ids": Flag(
        "-i --queue", "only queues with this id", more=REPEATED, argument="assign",
        type=click.IntRange(min=0), multiple=True,
    ),
    "offset": Flag(
        "-o --offset", "from this queue offset on (with -t and -i, without -b)",
        argument="starting_offsets", type=queue_offset, metavar="INTEGER",
    ),
    "least_offset": Flag("-o --offset", "from this queue offset on", type=click.IntRange(min=0)),
    "starting_timestamp": Flag("-b --begin", more=TIMES, metavar="TIME"),
    "ending_timestamp": Flag("-e --end", more=TIMES, metavar="TIME"),
    "last": Flag(
        "--last", "only the newest N of each queue, or with --scan commitlog of the log",
        metavar="N", type=POSITIVE,
    ),
    "tags": Flag("-s --tags"),
    "filter": Flag("--filter", more='"a > 5.0 AND b IS NOT NULL"'),
    "where": Flag("--where", more='"queueOffset >= 90 AND keys = \'k1\'"'),
    "columns": Flag("--columns", more="all by default"),
    "scan": Flag("--scan"),
    "mode": Flag("--mode"),
    "fail_on_data_loss": Flag(
        "--ignore-data-loss", "read on without messages that are gone", is_flag=True,
        callback=negated,
    ),
    "msg_key": Flag("-k --key", more=REPEATED, multiple=True),
    "msg_id": Flag("-m --msg-id", more=REPEATED, multiple=True),
    "msg_tags": Flag("--tags", more=REPEATED, multiple=True),
    "index_only": Flag("--index-only"),
    "timestamp": Flag("--time", "instead, with -t: the queue offsets at this store time"),
    "word_of_keys": Flag("-k --key", "only messages with this word of KEYS"),
    "unique_key": Flag("-m --msg-id", "only this message, by its unique key"),
    # Which rows of a view
    "consumer_group": Flag("-g --group", more="all by default", shell_complete=complete_groups),
    "group_of_clients": Flag(
        "-g --group", argument="consumer_group", required=True, shell_complete=complete_groups
    ),
    "clients": Flag("-c --client", more="once for each", multiple=True, required=True),
    "strategy": Flag(
        "--strategy", type=click.Choice([name for name in STRATEGIES if name != "CONFIG"]),
        default="AVG",
    ),
    "rooms": Flag("--room", more=REPEATED, multiple=True),
    "per": Flag(
        "--per",
        "count the messages of each topic by hour or day in place of queues; reads no body",
        type=click.Choice(["hour", "day"]),
    ),
    # What is done with them
    "follow": Flag(
        "-f --follow",
        "continue with new messages until interrupted, from --last, -b or -o, else from now on",
        is_flag=True,
    ),
    "body": Flag(
        "--body", "form of bodies; UTF-8 text, or else base64, if not given",
        type=click.Choice(FORMS),
    ),
    "charset": Flag("--charset", "charset of bodies; utf-8 if not given"),
    "verbatim": Flag(
        "--verbatim",
        "contents of records exactly as stored, with times and offsets: for exact copies",
        is_flag=True,
    ),
    "since": Flag(
        "--since", "leave out the oldest files, whose messages were all stored before this time"
    ),
    "target_options": Flag(
        "--target-option", "how to reach TARGET if it is a URI",
        more="once for each key, such as region=eu-west-1", metavar="KEY=VALUE", multiple=True,
        callback=key_values,
    ),
    "verify": Flag(
        "--no-verify", "do not check the copy at the end", is_flag=True, callback=negated
    ),
    "with_verify": Flag(
        "--verify/--no-verify", "also check the stores, which reads all of them", default=True
    ),
    # What is written
    "topic": Flag("-t --topic"),
    "default_queue_nums": Flag("--queue-nums", type=POSITIVE, default=4),
    "queue_selector": Flag("--queue-selector"),
    "compression": Flag("--compression"),
    "make_uniq_key": Flag("--uniq-key"),
    "allow_system_topics": Flag("--allow-system-topics"),
    "broker_version": Flag("--broker-version", metavar="RELEASE"),
    "broker_stopped": Flag("--broker-stopped"),
    "truncate": Flag("--truncate", "cut a damaged log even if good records follow", is_flag=True),
    "dry_run": Flag("--dry-run", "say what would change, and change nothing", is_flag=True),
    "yes": Flag("-y --yes", "do not ask on a terminal", is_flag=True),
    # Where rows go, and in what form
    "format_name": Flag(
        "--format", "form of the rows", type=click.Choice([TABLE, JSON, PRETTY, *FORMATS])
    ),
    "file_format": Flag(
        "--format", "format of the file, if its name does not give it",
        type=click.Choice(FILE_FORMATS),
    ),
    "source_format": Flag(
        "--format", "format of the files, if their names do not give it",
        type=click.Choice(INPUT_FORMATS),
    ),
    "as_json": Flag("--json", "the same as --format jsonl", is_flag=True),
    "output_file": Flag(
        "--output", "write the rows to FILE; .gz or .zst at the end of its name compresses text",
        metavar="FILE", type=NEW_FILE,
    ),
    "page": Flag("-o --output", "the HTML file", type=NEW_FILE, required=True),
    "overwrite": Flag("--overwrite", "replace the file if it exists", is_flag=True),
    "times": Flag(
        "--times", "times as ISO-8601, or as epoch ms; Parquet has a type for them",
        type=click.Choice([ISO, MILLIS]), default=ISO,
    ),
    "wide": Flag("--wide", "all columns and whole cells in a table on a terminal", is_flag=True),
    "limit": Flag("-n --limit", "at most N rows", type=POSITIVE),
    "fail_if_empty": Flag("--fail-if-empty", f"exit with {EMPTY} if there is no row", is_flag=True),
    "quiet": Flag("-q --quiet", "no progress", is_flag=True, expose_value=False, callback=keep),
    "time_zone": Flag(
        "--tz",
        more="also of times that are shown, such as Asia/Shanghai, +08:00 or local; UTC by default",
        metavar="ZONE", envvar="RMQSTORE_TZ", expose_value=False, callback=enter_zone,
    ),
}  # fmt: skip
