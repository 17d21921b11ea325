"""Which store a verb opens: its path, the file of its broker, and options beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from rmqstore.cli.common import Command, with_flags
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.arguments import FolderArguments
from rmqstore.query.options import help_of
from rmqstore.storage.broker.folders import names_by_path, read_brokers
from rmqstore.storage.broker.store_config import read_conf, root_of
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import BrokerSettings
from rmqstore.storage.files.remote_location import (
    is_live,
    is_pattern,
    is_uri,
    local_path,
    options_by_path,
)
from rmqstore.storage.files.storage import path_of
from rmqstore.store.cluster import StoreCluster
from rmqstore.store.message_store import MessageStore
from rmqstore.store.opening import expanded, open_for
from rmqstore.store.scan import Messages

_META = "rmqstore."
_OF_BROKERS = ("dump", "export")  # the verbs that read running brokers too


@dataclass(frozen=True)
class StoreOptions:
    """Options beside the path that say which store a command reads, and how to reach it."""

    confs: tuple[BrokerSettings, ...]  # the brokers' properties files, one for one store
    commitlogs: tuple[str, ...]  # what lies outside of the root
    consumequeue: str | None
    index: str | None
    dledger_logs: tuple[str, ...]
    dledger_self_id: str | None  # the node whose DLedger log to read
    tiered: Path | None  # folder of tiered storage
    storage_options: dict[str, str] | None  # how to reach the storage of a URI

    @property
    def conf(self) -> BrokerSettings | None:
        """The file of the only broker, None without one."""
        return self.confs[0] if len(self.confs) == 1 else None

    @property
    def folders(self) -> FolderArguments:
        """Where the parts of the store lie, as arguments of the core."""
        return {
            "commitlogs": self.commitlogs,
            "consumequeue": self.consumequeue,
            "index": self.index,
            "dledger_logs": self.dledger_logs,
            "dledger_self_id": self.dledger_self_id,
            "conf": self.conf,
        }

    @property
    def for_one_store(self) -> list[str]:
        """The options that were given and make sense for one store only."""
        given = {
            "--commitlog": self.commitlogs,
            "--consumequeue": self.consumequeue,
            "--index": self.index,
            "--dledger-log": self.dledger_logs,
            "--dledger-self-id": self.dledger_self_id,
            "--tiered": self.tiered,
        }
        return [flag for flag, value in given.items() if value]


def _keep(context: click.Context, option: click.Parameter, value: object) -> None:
    """Keep the value of an option for :func:`given_options`."""
    context.meta[f"{_META}{option.name}"] = value


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


def _keep_pairs(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> None:
    _keep(context, option, key_values(context, option, values))


class StoreFolder(click.Path):
    """A folder on the disk, or a URI; a file may be a part of a store, for which it stands.

    A pattern that no shell has replaced is only taken for :func:`open_stores`.
    """

    def __init__(self, *, is_local: bool = False, takes_patterns: bool = False) -> None:
        super().__init__(exists=True, file_okay=not is_local, path_type=Path)
        self._is_local, self._takes_patterns = is_local, takes_patterns

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401
        """Return the path."""
        if is_live(value) and (ctx is None or ctx.command.name not in _OF_BROKERS):
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
            return super().convert(local_path(value), param, ctx)
        except UnsupportedFeatureError as err:
            self.fail(str(err), param, ctx)


def _read_confs(
    context: click.Context, _option: click.Parameter, value: str | tuple[str, ...] | None
) -> None:
    """Keep the settings of brokers' files for :func:`given_options`."""
    files = (value,) if isinstance(value, str) else value or ()
    try:
        confs = tuple(read_conf(file) for file in files)
    except OptionError as err:
        raise click.UsageError(with_flags(err.text), context) from err
    context.meta[f"{_META}confs"] = confs


def conf_option(*flags: str, several: bool = False) -> Callable[[Command], Command]:
    """Return the option that names the file of a broker.

    Args:
        flags: how it is called.
        several: whether it may be given for several brokers.
    """
    each = "; may be repeated, for several brokers" if several else ""
    return click.option(
        *flags,
        "conf",
        metavar="FILE",
        multiple=several,
        is_eager=True,  # the path may come from it
        expose_value=False,
        callback=_read_confs,
        help=help_of("conf", f"PATH may be left out then{each}"),
    )


def _folder_option(flag: str, name: str, *, many: bool = False) -> Any:  # noqa: ANN401
    return click.option(
        flag, name, metavar="FOLDER", multiple=many, expose_value=False, callback=_keep,
        help=help_of(name, "may be repeated" if many else ""),
    )  # fmt: skip


def storage_option(what: str) -> Callable[[Command], Command]:
    """Return the option that says how to reach something."""
    return click.option(
        "--storage-option", "storage_options", metavar="KEY=VALUE", multiple=True,
        expose_value=False, callback=_keep_pairs,
        help=f"How to reach {what}, such as region=eu-west-1; may be repeated.",
    )  # fmt: skip


_PARTS_ELSEWHERE = (
    click.option(
        "--dledger-self-id",
        metavar="ID",
        expose_value=False,
        callback=_keep,
        help=help_of("dledger_self_id"),
    ),
    _folder_option("--dledger-log", "dledger_logs", many=True),
    _folder_option("--index", "index"),
    _folder_option("--consumequeue", "consumequeue"),
    _folder_option("--commitlog", "commitlogs", many=True),
)
_HOW_TO_OPEN = (
    storage_option("PATH if it is a URI"),
    click.option(
        "--tiered",
        metavar="FOLDER",
        type=StoreFolder(is_local=True),
        expose_value=False,
        callback=_keep,
        help=help_of("tiered"),
    ),
    *_PARTS_ELSEWHERE,
)

_BROKERS = click.option(
    "--brokers",
    metavar="FILE",
    is_eager=True,  # an id may be the first word then
    help="A .json or .toml file, or a JSON object, with stores by broker name.",
)


def parts_elsewhere(command: Command) -> Command:
    """Add the options that name the parts of a store outside of its root to a command."""
    for option in _PARTS_ELSEWHERE:
        command = option(command)
    return command


class _StoreArgument(click.Argument):
    def get_error_hint(self, _context: click.Context | None) -> str:
        return "'PATH'"


def store_path(command: Command) -> Command:
    """Add the argument that names a store, and the options in ``StoreOptions``, to a command.

    :func:`open_store` takes both. The argument may be left out with ``--conf``, so it takes any
    number of values, which lets other arguments follow it.
    """
    argument = click.argument(
        "path", cls=_StoreArgument, metavar="[PATH]", nargs=-1, type=StoreFolder(),
        callback=_one_path,
    )  # fmt: skip
    for parameter in (*_HOW_TO_OPEN, conf_option("-c", "--conf"), argument):
        command = parameter(command)
    return command


def store_paths_and_ids(command: Command) -> Command:
    """Do the same for a command that takes ``ids`` after the paths of stores.

    Paths are the first word, unless options name stores, and all before the first that is not one.
    """
    argument = click.argument("ids", metavar="[PATH]... ID...", nargs=-1, callback=_paths_and_ids)
    for parameter in (*_HOW_TO_OPEN, conf_option("-c", "--conf", several=True), _BROKERS, argument):
        command = parameter(command)
    return command


def _paths_and_ids(
    context: click.Context, argument: click.Parameter, words: tuple[str, ...]
) -> tuple[str, ...]:
    if context.resilient_parsing:
        return words
    is_named = context.meta.get(f"{_META}confs") or context.params.get("brokers")
    paths = tuple(takewhile(lambda word: is_uri(word) or LOCAL.exists(word), words))
    if not paths and not is_named:
        if not words:
            raise click.MissingParameter("Give it, or --conf.", context, _StoreArgument(["path"]))
        paths = words[:1]
    ids = words[len(paths) :]
    path, kind = _StoreArgument(["path"]), StoreFolder(takes_patterns=True)
    context.params["paths"] = tuple(kind.convert(word, path, context) for word in paths)
    if not ids:
        raise click.MissingParameter("Give at least one.", context, argument, param_hint="'ID'")
    return ids


def _one_path(
    context: click.Context, argument: click.Parameter, paths: tuple[Path, ...]
) -> Path | None:
    """Return the root of the store that is given, or that the broker's file names."""
    if len(paths) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({paths[1]})", context)
    if paths:
        return paths[0]
    confs = context.meta.get(f"{_META}confs")
    if not confs:
        if context.resilient_parsing:
            return None
        raise click.MissingParameter("Give it, or --conf.", context, argument)
    try:
        return Path(root_of(None, confs[0]))
    except OptionError as err:
        raise click.UsageError(with_flags(err.text), context) from err


def open_store(
    path: Path | None,
    *,
    broker_name: str | None = None,
    ignore_log_end: bool = False,
    conf: BrokerSettings | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> MessageStore:
    """Open the store that the arguments of a command name, for reading.

    Args:
        path: its root; None for that of ``conf``.
        broker_name, ignore_log_end: as for ``rmqstore.open``.
        conf: the file of its broker, of several that are given.
        storage_options: those that are for this store, of several; None for all that are given.
    """
    given = given_options()
    folders = given.folders
    if conf is not None:
        folders["conf"] = conf
    return open_for(
        path,
        broker_name=broker_name,
        ignore_log_end=ignore_log_end,
        tiered=given.tiered,
        storage_options=given.storage_options if storage_options is None else storage_options,
        **folders,
    )


def given_options() -> StoreOptions:
    """Return the options of the current command that say which store it reads."""
    meta = click.get_current_context().meta
    given: dict[str, Any] = {
        field.name: meta.get(f"{_META}{field.name}") for field in fields(StoreOptions)
    }
    for name in ("confs", "commitlogs", "dledger_logs"):
        given[name] = given[name] or ()
    return StoreOptions(**given)


def store_paths(command: Command) -> Command:
    """Add the arguments that name the stores of a cluster, for :func:`open_stores`."""
    return _with_stores(command, conf_option("-c", "--conf", several=True))


def store_paths_beside_clients(command: Command) -> Command:
    """Do the same for a command whose ``-c`` names clients."""
    return _with_stores(command, conf_option("--conf", several=True))


def _with_stores(command: Command, conf: Callable[[Command], Command]) -> Command:
    kind = StoreFolder(takes_patterns=True)
    paths = click.argument("paths", cls=_StoreArgument, metavar="[PATH]...", nargs=-1, type=kind)
    for parameter in (*_HOW_TO_OPEN, conf, _BROKERS, paths):
        command = parameter(command)
    return command


@contextmanager
def open_as_one(
    paths: Sequence[Path],
    brokers: str | None,
    *,
    ignore_log_end: bool = False,
) -> Iterator[MessageStore | StoreCluster]:
    """Open the only store that the arguments of a command name, or several as one."""
    with open_stores(paths, brokers, ignore_log_end=ignore_log_end) as stores:
        yield stores[0] if len(stores) == 1 else StoreCluster(stores)


@contextmanager
def open_any(
    paths: Sequence[Path], brokers: str | None, *, ignore_log_end: bool
) -> Iterator[Messages]:
    """Do the same for a command that also reads running brokers."""
    if len(paths) != 1 or brokers is not None or not is_live(paths[0]):
        with open_as_one(paths, brokers, ignore_log_end=ignore_log_end) as store:
            yield store
        return
    given = given_options()
    if ignore_log_end or given.confs or given.for_one_store:
        raise OptionError(f"{paths[0]}: options of stores have no meaning with running brokers")
    with open_for(str(paths[0]), storage_options=given.storage_options) as cluster:
        yield cluster


def each_store(opened: MessageStore | StoreCluster) -> list[MessageStore]:
    """Return the stores that are read."""
    return [*opened.stores.values()] if isinstance(opened, StoreCluster) else [opened]


@contextmanager
def open_stores(
    paths: Sequence[Path], brokers: str | None, *, ignore_log_end: bool = False
) -> Iterator[list[MessageStore]]:
    """Open the stores of a cluster, which the arguments of a command name."""
    given = given_options()
    paths = [*map(path_of, dict.fromkeys(expanded(paths, given.storage_options)))]
    by_broker = {} if brokers is None else read_brokers(brokers)
    names = names_by_path(
        {name: expanded(folders, given.storage_options) for name, folders in by_broker.items()}
    )
    each: list[tuple[Path | None, str | None, BrokerSettings | None]]
    if len(paths) == len(given.confs) == 1 and not names:  # the file of the store at the path
        each = [(paths[0], None, given.confs[0])]
    elif bool(paths) + bool(names) + bool(given.confs) == 1:
        each = [(path, None, None) for path in paths]
        each += [(path_of(path), name, None) for path, name in names.items()]
        each += [(None, None, conf) for conf in given.confs]
    elif not paths and brokers is None and not given.confs:
        context = click.get_current_context()
        argument = next(one for one in context.command.params if one.name == "paths")
        hint = "Name stores by PATH..., or by --brokers, or by --conf."
        raise click.MissingParameter(hint, context, argument)
    else:
        raise click.UsageError("name stores by PATH..., or by --brokers, or by --conf")
    if len(each) > 1 and given.for_one_store:
        raise click.UsageError(f"{', '.join(given.for_one_store)}: for one store only")
    named = [path for path, _, _ in each if path is not None]
    to_reach = options_by_path(named, given.storage_options)
    open_one = partial(open_store, ignore_log_end=ignore_log_end)
    with ExitStack() as stack:
        opened = []
        for path, name, conf in each:
            taken = None if path is None else to_reach[path]
            store = open_one(path, broker_name=name, conf=conf, storage_options=taken)
            opened.append(stack.enter_context(store))
        yield opened
