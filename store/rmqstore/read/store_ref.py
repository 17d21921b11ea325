"""Where stores lie, from paths, patterns and the files of brokers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rmqstore.errors import OptionError
from rmqstore.query.arguments import FolderArguments
from rmqstore.storage.broker.folders import names_by_path, root_for
from rmqstore.storage.broker.store_config import root_of
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.remote_location import (
    is_pattern,
    is_uri,
    local_path,
    matching,
    options_by_path,
    taken_by,
)

AnyPath: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class StoreRef:
    """Where one store lies, for any process that opens it.

    Attributes:
        path: its root, or the URI of that.
        broker_name: the name of its broker, if it is given.
        folders: the parts elsewhere, and the broker's file or, as another process may not see
            that, its settings.
        ignore_log_end: whether a log that was not closed is read on after its end.
        tiered: the tiered storage with its older messages.
        storage_options: how to reach the storage of a URI. No text shows them: they may be secrets.
    """

    path: str
    broker_name: str | None = None
    folders: FolderArguments = field(default_factory=FolderArguments)
    ignore_log_end: bool = False
    tiered: str | None = None
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)


def find_stores(
    paths: Mapping[str, AnyPath | Sequence[AnyPath]] | AnyPath | Sequence[AnyPath],
    common: StoreRef,
    confs: Iterable[AnyPath] = (),
) -> tuple[StoreRef, ...]:
    """Return the stores that paths and the files of brokers name, each once.

    Args:
        paths: roots of stores, parts of stores, URIs, and patterns for folders; or a table of them
            by broker name.
        common: what holds for all stores. Of its storage options each store takes those of its
            own storage.
        confs: the properties files of brokers whose stores are read too.

    Raises:
        OptionError: a path of a table is named twice, a pattern matches no folder, or no storage
            knows an option.
    """
    options = common.storage_options
    names: Mapping[str, str | None]
    if isinstance(paths, Mapping):
        names = names_by_path({name: _expanded(given, options) for name, given in paths.items()})
    else:
        names = dict.fromkeys(_expanded(paths, options))
    refs = [replace(common, path=path, broker_name=name) for path, name in names.items()]
    for conf in confs:
        folders: FolderArguments = {**common.folders, "conf": conf}
        refs.append(replace(common, path=os.fspath(root_of(None, conf)), folders=folders))
    taken = options_by_path([ref.path for ref in refs], options)
    return tuple(replace(ref, storage_options=taken[ref.path]) for ref in refs)


def _expanded(paths: AnyPath | Sequence[AnyPath], options: Mapping[str, object]) -> tuple[str, ...]:
    """Return the roots of stores that paths name; patterns give the folders that they match.

    Raises:
        OptionError: it is not a path, or a pattern matches none.
    """
    expanded: list[str] = []
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not isinstance(several, Iterable):
        raise OptionError(f"`path` {several!r}: must be a path, or a list of paths")
    for path in several:
        if not isinstance(path, (str, os.PathLike)):
            raise OptionError(f"`path` {path!r}: must be a path")
        text = os.fspath(path)
        if is_pattern(text) and (is_uri(text) or not LOCAL.exists(text)):
            found = matching(text, taken_by(text, options))
            if not found:
                raise OptionError(f"{text!r} does not match any folder")
            expanded += found
        else:
            expanded.append(text if is_uri(text) else str(root_for(local_path(text), LOCAL)))
    return tuple(expanded)
