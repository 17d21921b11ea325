"""Folders as arguments of a verb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rmqstore.errors import UnsupportedFeatureError
from rmqstore.storage.files.storage import path_of
from rmqstore.storage.remote.location import is_uri, local_path


class LocalFolder(click.Path):
    """A folder on the local disk."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the path."""
        if is_uri(value):
            self.fail(f"{value} is not on the local disk, where it has to be", param, ctx)
        return super().convert(value, param, ctx)


class StoreFolder(click.Path):
    """A local folder, which has to exist, or the URI of one in another file system.

    A file may be a part of a store, which stands for the whole.
    """

    def __init__(self) -> None:
        super().__init__(exists=True, path_type=Path)

    def convert(
        self,
        value: Any,  # noqa: ANN401
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401
        """Return the path."""
        if is_uri(value):
            if not str(value).partition(":")[2].strip("/"):
                self.fail(f"{value} names no bucket: write {value}bucket/folder", param, ctx)
            return path_of(value)
        try:
            name = local_path(value)
        except UnsupportedFeatureError as err:
            self.fail(str(err), param, ctx)
        return super().convert(name, param, ctx)
