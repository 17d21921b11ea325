"""Whether a folder can be renamed over another one."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


def can_replace(folder: Path, source: Path) -> bool:
    """Tell whether a folder can be renamed over another one, and looks like it then.

    It is tried with an empty folder, because a mount point of the same disk looks like any other
    folder.

    Args:
        folder: the folder that is to be replaced. It has to be empty.
        source: the folder that would replace it. It must not exist yet.
    """
    if folder.is_symlink() or any(folder.iterdir()):
        return False
    before = folder.stat()
    try:
        source.mkdir()
        source.chmod(stat.S_IMODE(before.st_mode))
        after = source.stat()
        looks_alike = (before.st_uid, before.st_gid) == (after.st_uid, after.st_gid)
        if not looks_alike or os.listxattr(folder) != os.listxattr(source):
            return False
        source.rename(folder)
    except OSError as err:
        logger.info("%s cannot be replaced: %s", folder, err)
        return False
    else:
        return True
    finally:
        with suppress(OSError):
            source.rmdir()
