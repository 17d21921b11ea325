"""How values of parameters are taken, kept and completed, and how errors name the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from rmqstore.cli.verbs import main
from rmqstore.errors import OptionError, RmqStoreError, UnsupportedFeatureError, rename_arguments
from rmqstore.query.times import time_zone
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.folders import find_store, root_of_part
from rmqstore.storage.broker.store_config import read_conf, root_of
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.storage.files.remote_location import (
    is_live,
    is_pattern,
    is_uri,
    local_path,
    require_path,
)
from rmqstore.storage.files.storage import is_folder, path_of

# Where a command keeps values that its function does not get, in the context of click.
KEPT: Final = "rmqstore."
CONFS: Final = f"{KEPT}confs"  # the settings in brokers' files
QUIET: Final = f"{KEPT}quiet"
_OF_BROKERS: Final = ("dump", "export")  # the verbs that read running brokers too


class Named(click.Option):
    """An option that knows its argument in Python.

    Attributes:
        argument: its name; that of the parameter if the option is of the command line alone.
    """

    def __init__(self, declared: list[str], *, argument: str, **settings: Any) -> None:  # noqa: ANN401 - as click has it
        super().__init__(declared, **settings)
        self.argument = argument


class StoreArgument(click.Argument):
    """The paths of stores, which errors call PATH."""

    argument = "path"

    def get_error_hint(self, _context: click.Context | None) -> str:
        """Return how errors call it."""
        return "'PATH'"


def with_flags(text: str) -> str:
    """Return a text of the core with the options of the running command for its arguments.

    Where it has no such option, it is that of ``dump``, and else the argument of Python.
    """
    context = click.get_current_context(silent=True)
    verb_is_named = False

    def flag(name: str, value: str | None) -> str:
        nonlocal verb_is_named
        if context is not None:
            own = _flag_of(name, value, context.command)
            if own is not None:
                return own
        of_dump = _flag_of(name, value, main.verb("dump"))
        if of_dump is not None and value is not None:
            verb = "" if verb_is_named else "dump "
            verb_is_named = True
            return verb + of_dump
        argument = name if value is None else f"{name}={value}"
        return f"{argument} (in Python)" if "_" in name else argument

    return rename_arguments(text, flag)


def _flag_of(argument: str, value: str | None, command: click.Command) -> str | None:
    by_argument = {getattr(param, "argument", param.name): param for param in command.params}
    parameter = by_argument.get(argument)
    if parameter is None:
        return None
    if isinstance(parameter, click.Argument):
        return str(parameter.human_readable_name).strip("[].").upper()
    if not value:
        return "/".join(parameter.opts)
    longest = max(parameter.opts, key=len)
    is_switch = isinstance(parameter, click.Option) and parameter.is_flag
    return longest if is_switch else f"{longest} {value}"


class StoreFolder(click.Path):
    """A folder on the disk, or a URI; a file may be a part of a store, for which it stands.

    A pattern that no shell has replaced is only taken for ``open_stores``.
    """

    def __init__(self, *, is_local: bool = False, takes_patterns: bool = False) -> None:
        super().__init__(exists=True, file_okay=not is_local, path_type=Path)
        self._is_local = is_local
        self._takes_patterns = takes_patterns

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the path."""
        if is_live(value):
            if ctx is not None and ctx.command.name in _OF_BROKERS:
                return path_of(value)
            verbs = " and ".join(f"rmqstore {name}" for name in _OF_BROKERS)
            self.fail(
                f"{value}: running brokers serve nothing but messages, which {verbs} read; this "
                "needs the files of a store, or of a copy that rmqstore follow keeps", param, ctx,
            )  # fmt: skip
        if is_uri(value):
            if self._is_local:
                self.fail(f"{value} is not on the local disk, where it has to be", param, ctx)
            if not str(value).partition(":")[2].strip("/"):
                self.fail(f"{value} names no bucket: write {value}bucket/folder", param, ctx)
            return path_of(value)
        if self._takes_patterns and is_pattern(value) and not LOCAL.exists(value):
            return Path(value)
        try:
            require_path(value)
            return super().convert(local_path(value), param, ctx)
        except (OptionError, UnsupportedFeatureError) as err:
            self.fail(str(err), param, ctx)


class NewFile(click.Path):
    """A file that a verb writes."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the path."""
        if is_folder(LOCAL, value):
            hint = "name a file in it"
            if isinstance(param, click.Argument) and ctx is not None:
                hint = f"name the file after it: {ctx.command_path} {value} messages.parquet"
            self.fail(f"{value} is a folder; {hint}", param, ctx)
        return super().convert(value, param, ctx)


def queue_offset(text: str) -> int:
    """Return the queue offset that a text is, and say what else ``-o`` may have been meant for."""
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a queue offset, which -o means here: dump writes to the file that "
            "--output names, and export to TARGET, as in rmqstore export PATH TARGET"
        ) from None


def negated(_context: click.Context, _option: click.Parameter, value: bool) -> bool:
    """Return the argument of Python that a flag such as ``--no-verify`` turns off."""
    return not value


def keep(context: click.Context, option: click.Parameter, value: object) -> None:
    """Keep the value of an option, which the function of the command does not get."""
    context.meta[f"{KEPT}{option.name}"] = value


def keep_pairs(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> None:
    """Keep the values of an option that is given as KEY=VALUE."""
    keep(context, option, key_values(context, option, values))


def key_values(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Return the values of an option that is given as KEY=VALUE, once for each key."""
    options = {}
    for value in values:
        name, equals, setting = value.partition("=")
        if not equals:  # the text may be a secret
            raise click.BadParameter("must be KEY=VALUE", ctx=context, param=option)
        options[name] = setting
    return options


def keep_confs(
    context: click.Context, _option: click.Parameter, value: str | tuple[str, ...] | None
) -> None:
    """Keep the settings in brokers' files."""
    files = (value,) if isinstance(value, str) else value or ()
    try:
        confs = tuple(read_conf(file) for file in files)
    except OptionError as err:
        raise click.UsageError(with_flags(err.text), context) from err
    context.meta[CONFS] = confs


def enter_zone(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    """Let times be of a zone until the command ends."""
    if value is None:
        return
    try:
        context.with_resource(time_zone(value))
    except OptionError as err:
        raise click.BadParameter(str(err).partition(": ")[2]) from err


def complete_topics(context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics of the stores that a command line names so far, for a shell."""
    topics: set[str] = set()
    for paths in _stores_named(context):
        with suppress(RmqStoreError, OSError):
            topics |= {
                *paths.queue_folders.topics(),
                *paths.batch_folders.topics(),
                *BrokerConfig(paths).topics(),
            }
    return sorted(topic for topic in topics if topic.startswith(incomplete))


def complete_groups(context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Return their consumer groups."""
    groups: set[str] = set()
    for paths in _stores_named(context):
        with suppress(RmqStoreError, OSError):
            groups |= {*BrokerConfig(paths).groups()}
    return sorted(group for group in groups if group.startswith(incomplete))


def _stores_named(context: click.Context) -> Iterator[StorePaths]:
    # Before an option that lacks its value click leaves arguments as they are.
    words = *context.args, *(context.params.get("paths") or ()), *(context.params.get("ids") or ())
    roots = {Path(word): None for word in (*words, context.params.get("path")) if word}
    roots = {root_of_part(path, LOCAL) or path: None for path in roots}
    confs = context.meta.get(CONFS) or ()
    for path, conf in [*roots.items(), *((None, conf) for conf in confs)]:
        with suppress(RmqStoreError, OSError):
            yield find_store(root_of(path, conf), conf=conf)
