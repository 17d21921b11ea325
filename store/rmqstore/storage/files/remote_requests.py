"""Requests to a remote file system: counted, and repeated if they fail."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from logging import INFO, WARNING
from threading import Lock
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyarrow import ArrowException

from rmqstore.errors import RemoteReadError, RmqStoreError

logger = logging.getLogger(__name__)

AT_ONCE: Final = 8  # requests
_MAX_AHEAD_BYTES: Final = 40 << 20  # fetched before they are read, of all objects together
_ATTEMPTS: Final = 5
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONG_SECONDS: Final = 5.0  # after which a warning says why people wait
# Signatures in URLs: a SAS token of Azure, whose parameters its SDK sorts, and presigned URLs.
_SIGNATURE: Final = re.compile(r"(?i)\b((?:x-amz-)?(?:sig|signature|security-token)=)[^&\s'\"]+")
# Names of objects in what a file system says, which may hold any words.
_NAMES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\S*/\S*")
# What says that there is no such object.
_MISSING = ("no_such_key", "nosuchkey", "status 404")
# What a repetition does not help with, as pyarrow and the SDKs of clouds put it.
_FINAL = (
    "access_denied", "access denied", "accessdenied", "forbidden", "invalid_access_key_id",
    "invalidaccesskeyid", "signature_does_not_match", "signaturedoesnotmatch", "unauthorized",
    "no_such_bucket", "nosuchbucket", "http status 403", "http status 401", "expired_token",
    "expiredtoken", "permission",
)  # fmt: skip

T = TypeVar("T")


class Version(NamedTuple):
    """What distinguishes contents of an object: its length, and its ETag or time."""

    size: int
    tag: str


class Range(NamedTuple):
    """A range of an object that is open."""

    file: Any
    name: str
    start: int
    end: int
    require_same: Callable[[], None]  # raises an error if the object is now another one

    def __str__(self) -> str:
        return f"bytes {self.start} to {self.end} (excluded) of {self.name}"


@dataclass
class Counts:
    """The requests so far."""

    listings: int = 0
    heads: int = 0
    gets: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.gets} GETs of {self.bytes} bytes, {self.heads} HEADs, {self.listings} listings"
        )


class RemoteRequests:
    """Makes the requests to one file system.

    Args:
        filesystem: a ``pyarrow.fs.FileSystem``.
        secrets: texts that no error may show.
    """

    def __init__(self, filesystem: Any, secrets: Iterable[str] = ()) -> None:  # noqa: ANN401
        self.filesystem = filesystem
        self.counts = Counts()
        self._secrets = tuple(filter(None, secrets))
        self._guard = Lock()
        self._n_ahead = 0
        self._pool = ThreadPoolExecutor(AT_ONCE, "rmqstore-fetch")  # whose threads begin with work

    def list(self, key: str, name: str, *, recursive: bool) -> list[Any]:
        """Return the FileInfo of all that is in a folder; [] if there is no such folder."""
        from pyarrow.fs import FileSelector

        selector = FileSelector(key, recursive=recursive, allow_not_found=True)
        self._count(listings=1)
        return self.repeated(lambda: self.filesystem.get_file_info(selector), f"listing {name}")

    def info(self, key: str, name: str) -> Any:  # noqa: ANN401
        """Return the FileInfo of one key."""
        self._count(heads=1)
        return self.repeated(lambda: self.filesystem.get_file_info(key), f"the size of {name}")

    def handle(self, key: str, name: str) -> tuple[Any, Version]:
        """Open an object; return it and what distinguishes its content from another.

        Raises:
            FileNotFoundError: there is no such object.
        """
        self._count(heads=1)

        def opened() -> tuple[Any, Version]:
            file = self.filesystem.open_input_file(key)
            size = file.size()
            metadata = file.metadata() or {}
            etag = metadata.get("ETag") or metadata.get(b"ETag")
            if etag:
                return file, Version(size, etag.decode() if isinstance(etag, bytes) else etag)
            info = self.filesystem.get_file_info(key)
            return file, Version(size, str(info.mtime_ns))

        return self.repeated(opened, name)

    def begin(self, byte_range: Range) -> Future[NDArray[np.uint8]]:
        """Begin to fetch a range of an object."""
        return self._pool.submit(self.get, byte_range)

    def begin_ahead(
        self, byte_range: Range, take: Callable[[Future[NDArray[np.uint8]]], None]
    ) -> bool:
        """Begin to fetch a range that nobody waits for yet, if there is room for it.

        Args:
            byte_range: the range.
            take: called when it has come, or has failed; it raises nothing.

        Returns:
            Whether there is room.
        """
        n_bytes = byte_range.end - byte_range.start
        with self._guard:
            if self._n_ahead + n_bytes > _MAX_AHEAD_BYTES:
                return False
            self._n_ahead += n_bytes

        def done(fetched: Future[NDArray[np.uint8]]) -> None:
            with self._guard:
                self._n_ahead -= n_bytes
            take(fetched)

        self.begin(byte_range).add_done_callback(done)
        return True

    def get(self, byte_range: Range) -> NDArray[np.uint8]:
        """Return the bytes of a range of an object.

        Raises as :meth:`repeated` does, and what the range says if its object is another one.
        """
        n_bytes = byte_range.end - byte_range.start
        self._count(gets=1, bytes=n_bytes)

        def read() -> NDArray[np.uint8]:
            data = np.frombuffer(byte_range.file.read_at(n_bytes, byte_range.start), np.uint8)
            if len(data) < n_bytes:
                raise OSError(f"only {len(data)} bytes came")
            return data

        return self.repeated(read, str(byte_range), byte_range.require_same)

    def repeated(
        self, request: Callable[[], T], what: str, check: Callable[[], None] | None = None
    ) -> T:
        """Return what a request gives, made again after a pause if it fails.

        Args:
            request: makes the request.
            what: what it is for, in words.
            check: called after a failure; raises an error if a repetition has no use.

        Raises:
            FileNotFoundError: the object does not exist.
            RemoteReadError: it failed each time, or it is not allowed.
        """
        began = monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return request()
            except (FileNotFoundError, RmqStoreError):
                raise
            except (OSError, ArrowException) as err:
                reason = self._without_secrets(str(err))
                if check is not None:
                    check()
                said = _NAMES.sub("", reason).lower()
                if any(word in said for word in _MISSING):
                    raise FileNotFoundError(what) from None
                is_final = not isinstance(err, OSError) or any(word in said for word in _FINAL)
                if is_final or attempt == _ATTEMPTS:
                    raise RemoteReadError(what, reason, attempt) from None
                level = WARNING if monotonic() - began > _LONG_SECONDS else INFO
                logger.log(level, "%s: %s; trying again", what, reason)
                sleep(_FIRST_PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1))  # noqa: S311
            except Exception as err:  # noqa: BLE001 - a file system of the caller may raise any
                reason = self._without_secrets(
                    f"the file system fails: {type(err).__name__}: {err}"
                )
                raise RemoteReadError(what, reason, attempt) from None
        raise AssertionError("the last attempt returns or raises")

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _SIGNATURE.sub(r"\1***", text)

    def _count(self, **more: int) -> None:
        with self._guard:
            for name, number in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)
