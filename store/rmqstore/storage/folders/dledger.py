"""Finds the folders of the DLedger log of a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rmqstore.errors import Argument, NotAStoreError, OptionError, Text
from rmqstore.storage.files.paths import is_text, segment_files
from rmqstore.storage.files.storage import Storage, is_folder, path_of

DLEDGER_PREFIX: Final = "dledger-"  # of the folder of a node


def find_dledger_logs(
    base: Path, given: Sequence[str | Path], self_id: str | None, storage: Storage
) -> tuple[Path, ...]:
    """Return the folders that hold the DLedger log of a store; none in most stores.

    Raises:
        NotAStoreError: a given folder is not there.
        OptionError: there are logs of several nodes, or none of the given one.

    Source: DLedgerConfig.java#getDataStorePath.
    """
    if given:
        folders = tuple(path_of(folder) for folder in given)
        missing = next((folder for folder in folders if not is_folder(storage, folder)), None)
        if missing is not None:
            raise NotAStoreError(
                Text(
                    f"{base}: there is no folder {missing}, which ",
                    Argument("dledger_logs", ""),
                    " names as one that holds the files of a DLedger log",
                )
            )
        return folders
    by_id = {
        folder.parent.name.removeprefix(DLEDGER_PREFIX): folder
        for folder in dledger_data_folders(storage, base)
        if segment_files(storage, folder)
    }
    listed = ", ".join(f"{node} in {folder}" for node, folder in by_id.items()) or "none"
    if self_id is not None and self_id not in by_id:
        raise OptionError(
            Text(
                f"{base}: ",
                Argument("dledger_self_id", self_id),
                f" names a node without a DLedger log; there are: {listed}",
            )
        )
    if self_id is None and len(by_id) > 1:
        raise OptionError(
            Text(
                f"{base} holds the DLedger logs of several nodes ({listed}); "
                "choose one of them with ",
                Argument("dledger_self_id", ""),
            )
        )
    return tuple(folder for node, folder in by_id.items() if self_id in (None, node))


def dledger_data_folders(storage: Storage, root: Path) -> list[Path]:
    """Return the folders of the files of DLedger logs, whether or not there are any.

    Source: DLedgerConfig.java.
    """
    entries = storage.list_folder(root)
    names = (entry.name for entry in entries if entry.is_folder and is_text(entry.name))
    return sorted(root / name / "data" for name in names if name.startswith(DLEDGER_PREFIX))
