"""Which store a verb opens: its path, the file of its broker, and options beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, cast

import click

from rmqstore.cli.options import Command, options
from rmqstore.cli.parameters import CONFS, KEPT, StoreArgument, StoreFolder, with_flags
from rmqstore.errors import OptionError
from rmqstore.query.arguments import FolderArguments
from rmqstore.read.store_parts import open_ref
from rmqstore.read.store_ref import StoreRef, find_stores
from rmqstore.storage.broker.folders import read_brokers
from rmqstore.storage.broker.store_config import root_of
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import BrokerSettings
from rmqstore.storage.files.remote_location import is_live, is_uri
from rmqstore.store.cluster import StoreCluster
from rmqstore.store.message_store import MessageStore
from rmqstore.store.opening import open_for
from rmqstore.store.scan import Messages


@dataclass(frozen=True)
class StoreOptions:
    """The options that locate a store, or the stores of a cluster, beside their paths."""

    brokers: str | None  # a table of the stores of several brokers
    confs: tuple[BrokerSettings, ...]  # the brokers' properties files, one for one store
    elsewhere: Mapping[str, Any]  # what lies outside of the root, by argument of the core
    tiered: Path | None  # folder of tiered storage
    storage_options: dict[str, str] | None  # how to reach the storage of a URI

    @property
    def conf(self) -> BrokerSettings | None:
        """The file of the only broker, None without one."""
        return self.confs[0] if len(self.confs) == 1 else None

    @property
    def folders(self) -> FolderArguments:
        """Where the parts of the store lie, as arguments of the core."""
        return cast("FolderArguments", {**self.elsewhere, "conf": self.conf})

    @property
    def common(self) -> StoreRef:
        """What the options say of each store."""
        tiered = None if self.tiered is None else os.fspath(self.tiered)
        return StoreRef(
            "", folders=self.folders, tiered=tiered, storage_options=self.storage_options or {}
        )

    @property
    def for_one_store(self) -> list[str]:
        """The arguments that were given and make sense for one store only."""
        return [*self.elsewhere] if self.tiered is None else [*self.elsewhere, "tiered"]


PARTS_ELSEWHERE: Final = ("commitlogs", "consumequeue", "index", "dledger_logs", "dledger_self_id")
_HOW_TO_OPEN: Final = (*PARTS_ELSEWHERE, "tiered", "storage_options")


def store_path(command: Command) -> Command:
    """Add the argument that names a store, and the options in ``StoreOptions``, to a command.

    :func:`open_store` takes both. The argument may be left out with ``--conf``, so it takes any
    number of values, which lets other arguments follow it.
    """
    argument = click.argument(
        "path", cls=StoreArgument, metavar="[PATH]", nargs=-1, type=StoreFolder(),
        callback=_one_path,
    )  # fmt: skip
    return argument(options("conf", *_HOW_TO_OPEN)(command))


def store_paths_and_ids(command: Command) -> Command:
    """Do the same for a command that takes ``ids`` after the paths of stores.

    Paths are the first word, unless options name stores, and all before the first that is not one.
    """
    argument = click.argument("ids", metavar="[PATH]... ID...", nargs=-1, callback=_paths_and_ids)
    return argument(options("brokers", "confs", *_HOW_TO_OPEN)(command))


def _paths_and_ids(
    context: click.Context, argument: click.Parameter, words: tuple[str, ...]
) -> tuple[str, ...]:
    if context.resilient_parsing:
        return words
    is_named = context.meta.get(CONFS) or context.meta.get(f"{KEPT}brokers")
    paths = tuple(takewhile(lambda word: is_uri(word) or LOCAL.exists(word), words))
    if not paths and not is_named:
        if not words:
            raise click.MissingParameter("Give it, or --conf.", context, StoreArgument(["path"]))
        paths = words[:1]
    ids = words[len(paths) :]
    path = StoreArgument(["path"])
    kind = StoreFolder(takes_patterns=True)
    context.params["paths"] = tuple(kind.convert(word, path, context) for word in paths)
    if not ids:
        raise click.MissingParameter("Give at least one.", context, argument, param_hint="'ID'")
    return ids


def _one_path(
    context: click.Context, argument: click.Parameter, paths: tuple[Path, ...]
) -> Path | None:
    """Return the given root of a store, or else the one in the broker's file."""
    if len(paths) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({paths[1]})", context)
    if paths:
        return paths[0]
    confs = context.meta.get(CONFS)
    if not confs:
        if context.resilient_parsing:
            return None
        raise click.MissingParameter("Give it, or --conf.", context, argument)
    try:
        return Path(root_of(None, confs[0]))
    except OptionError as err:
        raise click.UsageError(with_flags(err.text), context) from err


def open_store(path: Path | None) -> MessageStore:
    """Open the only store that the arguments of a command name, for reading.

    Args:
        path: its root; None for that in its broker's file.
    """
    given = given_options()
    root = os.fspath(root_of(path, given.conf))
    return MessageStore(open_ref(replace(given.common, path=root)))


def given_options() -> StoreOptions:
    """Return the options of the current command that locate its store."""
    meta = click.get_current_context().meta
    given = {name: meta.get(f"{KEPT}{name}") for name in ("brokers", "confs", *_HOW_TO_OPEN)}
    elsewhere = {name: given[name] for name in PARTS_ELSEWHERE if given[name]}
    confs = given["confs"] or ()
    return StoreOptions(
        given["brokers"], confs, elsewhere, given["tiered"], given["storage_options"]
    )


def store_paths(command: Command, confs: str = "confs") -> Command:
    """Add the arguments that name the stores of a cluster, for :func:`open_stores`.

    Args:
        command: the command.
        confs: the row of the option for brokers' files.
    """
    kind = StoreFolder(takes_patterns=True)
    paths = click.argument("paths", cls=StoreArgument, metavar="[PATH]...", nargs=-1, type=kind)
    return paths(options("brokers", confs, *_HOW_TO_OPEN)(command))


@contextmanager
def open_as_one(
    paths: Sequence[Path], *, ignore_log_end: bool = False
) -> Iterator[MessageStore | StoreCluster]:
    """Open the only store that the arguments of a command name, or several as one."""
    with open_stores(paths, ignore_log_end=ignore_log_end) as stores:
        yield stores[0] if len(stores) == 1 else StoreCluster(stores)


def open_any(paths: Sequence[Path], *, ignore_log_end: bool) -> AbstractContextManager[Messages]:
    """Do the same for a command that also reads running brokers."""
    if not names_brokers(paths):
        return open_as_one(paths, ignore_log_end=ignore_log_end)
    given = given_options()
    if ignore_log_end or given.confs or given.for_one_store:
        raise OptionError(f"{paths[0]}: options of stores have no meaning with running brokers")
    return open_for(str(paths[0]), storage_options=given.storage_options)


def names_brokers(paths: Sequence[Path]) -> bool:
    """Return whether the arguments of a command name running brokers."""
    return len(paths) == 1 and given_options().brokers is None and is_live(paths[0])


def each_store(opened: MessageStore | StoreCluster) -> list[MessageStore]:
    """Return the stores that are read."""
    return [*opened.stores.values()] if isinstance(opened, StoreCluster) else [opened]


@contextmanager
def open_stores(
    paths: Sequence[Path], *, ignore_log_end: bool = False
) -> Iterator[list[MessageStore]]:
    """Open the stores of a cluster, which the arguments of a command name."""
    refs = find_given(paths, ignore_log_end=ignore_log_end)
    with ExitStack() as stack:
        yield [stack.enter_context(MessageStore(open_ref(ref))) for ref in refs]


def find_given(paths: Sequence[Path], *, ignore_log_end: bool = False) -> tuple[StoreRef, ...]:
    """Return where the stores of a cluster lie, which the arguments of a command name."""
    given = given_options()
    is_table = given.brokers is not None
    if not (paths or is_table or given.confs):
        context = click.get_current_context()
        argument = next(param for param in context.command.params if param.name == "paths")
        hint = "Name stores by PATH..., or by --brokers, or by --conf."
        raise click.MissingParameter(hint, context, argument)
    common = replace(given.common, ignore_log_end=ignore_log_end)
    named = paths if given.brokers is None else read_brokers(given.brokers)
    refs = find_stores(named, common, () if paths else given.confs)
    is_file_of_store = len(refs) == len(given.confs) == 1 and not is_table
    if bool(paths) + is_table + bool(given.confs) > 1 and not is_file_of_store:
        raise click.UsageError("name stores by PATH..., or by --brokers, or by --conf")
    if len(refs) > 1 and given.for_one_store:
        refused = ", ".join(f"`{name}`" for name in given.for_one_store)
        raise click.UsageError(with_flags(f"{refused}: for one store only"))
    return refs
