"""Bytes of S3 objects by presigned URLs.

pyarrow's client lists, opens and reads objects, but it takes twice the processor time to receive
bytes. So where botocore is installed, it signs a URL for each object, and Python's HTTP client
fetches ranges from there into arrays. The ETag of each answer is compared with that of the object
that was opened, which no second request has to do then.

What is refused in this way, by a policy, a proxy or another region, is left to pyarrow, which knows
more ways and says what is wrong.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from os import environ, getpid
from threading import Lock, local
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_URL_SECONDS: Final = 3600  # for which a URL is signed
_RENEWED_SECONDS: Final = 600
_ANSWER_SECONDS: Final = 20.0  # without a byte
_IDLE_CONNECTIONS: Final = 16
_CONNECT_SECONDS: Final = 5.0  # where the option says nothing of use
_PARTIAL, _NOT_FOUND, _OUT_OF_RANGE, _SERVER_ERROR = 206, 404, 416, 500
_TRIED_AGAIN: Final = (408, 429)  # besides errors of the server
_signing = local()


class _RefusedError(Exception):
    """Presigned URLs are of no use here; pyarrow goes on."""


class _OtherObjectError(OSError):
    """An answer is not of the version that was opened, or so it seems."""


class PresignedGets:
    """Fetches ranges of the objects that one client of S3 may read.

    Args:
        make_client: makes botocore's client, when it is needed first.
        connect_seconds: how long a connection is waited for.
    """

    def __init__(self, make_client: Callable[[], Any], connect_seconds: float) -> None:
        self.is_refused = False
        self._make_client = make_client
        is_usable = 0 < connect_seconds < _URL_SECONDS
        self._connect_seconds = connect_seconds if is_usable else _CONNECT_SECONDS
        self._process = getpid()
        self._client: Any = None
        self._guard = Lock()
        self._idle: dict[tuple[str, str], list[HTTPConnection]] = {}
        self._context: ssl.SSLContext | None = None

    def url(self, key: str) -> str:
        """Return a URL that gives the object at ``bucket/name`` for a while.

        Raises:
            _RefusedError: none can be signed.
        """
        bucket, _, name = key.partition("/")
        with self._guard, _unlogged():
            try:
                if self._client is None:
                    self._client = self._make_client()
                return str(
                    self._client.generate_presigned_url(
                        "get_object", {"Bucket": bucket, "Key": name}, ExpiresIn=_URL_SECONDS
                    )
                )
            except Exception as err:  # noqa: BLE001 - botocore's have no common base
                raise self._refusal(f"no URL can be signed ({type(err).__name__})") from None

    def get(self, url: str, mark: str, start: int, n_bytes: int) -> NDArray[np.uint8]:
        """Return bytes of an object, compared with the ETag that it had.

        Raises:
            OSError: the request failed, or the answer is cut.
            _OtherObjectError: the object is another one, or gone.
            _RefusedError: the server gives nothing in this way.
        """
        data = np.empty(n_bytes, np.uint8)
        connection, response, place = self._answer(url, start, n_bytes)
        is_whole = False
        try:
            self._require_part(response, mark, start, n_bytes)
            _receive(response, data.data)
            is_whole = not response.will_close
        finally:
            if is_whole:
                self._give_back(place, connection)
            else:
                connection.close()
        return data

    def _answer(
        self, url: str, start: int, n_bytes: int
    ) -> tuple[HTTPConnection, HTTPResponse, tuple[str, str]]:
        """Send a request; return the connection, the head of the answer and the server."""
        parts = urlsplit(url)
        place = parts.scheme, parts.netloc
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        headers = {"Range": f"bytes={start}-{start + n_bytes - 1}"}
        while True:
            connection, was_idle = self._connection(*place)
            try:
                if not was_idle:
                    self._connect(connection)
                connection.request("GET", target, headers=headers)
                return connection, connection.getresponse(), place
            except (OSError, HTTPException) as err:
                connection.close()
                if not was_idle or isinstance(err, TimeoutError):
                    raise OSError(str(err) or type(err).__name__) from None
                self._drop_idle(place)  # a server may end idle connections at any time

    def _connect(self, connection: HTTPConnection) -> None:
        try:
            connection.connect()
        except ssl.SSLError:
            raise self._refusal("there is no trusted connection to the server") from None
        except ValueError:
            raise self._refusal("the name of the server is not a host's") from None
        connection.sock.settimeout(_ANSWER_SECONDS)

    def _drop_idle(self, place: tuple[str, str]) -> None:
        with self._guard:
            dropped = self._idle.pop(place, [])
        for connection in dropped:
            connection.close()

    def _require_part(self, response: HTTPResponse, mark: str, start: int, n_bytes: int) -> None:
        status = response.status
        if status in _TRIED_AGAIN or status >= _SERVER_ERROR:
            raise OSError(f"HTTP status {status}")
        if status in (_NOT_FOUND, _OUT_OF_RANGE):
            raise _OtherObjectError("the object is shorter than when it was opened, or gone")
        if status != _PARTIAL or response.length is None:
            raise self._refusal(f"the server answers with status {status}, and not with a range")
        if response.getheader("ETag") != mark:
            raise _OtherObjectError("the object has another ETag than when it was opened")
        stated = response.getheader("Content-Range", "")
        if not stated.startswith(f"bytes {start}-{start + n_bytes - 1}/"):
            raise _OtherObjectError("other bytes come than those that were asked for")
        if response.length != n_bytes:
            raise OSError(f"only {response.length} bytes come")

    def _connection(self, scheme: str, host: str) -> tuple[HTTPConnection, bool]:
        """Return a connection to a server, and whether it was used before."""
        with self._guard:
            if self._process != getpid():  # this is a fork; the connections are its parent's
                self._idle, self._process = {}, getpid()
            idle = self._idle.get((scheme, host))
            if idle:
                return idle.pop(), True
        if scheme in getproxies() and not proxy_bypass(host):
            raise self._refusal("there is a proxy")
        if scheme != "https":
            return HTTPConnection(host, timeout=self._connect_seconds), False
        if self._context is None:
            try:
                bundle = environ.get("AWS_CA_BUNDLE") or None
                self._context = ssl.create_default_context(cafile=bundle)
            except OSError:
                raise self._refusal("AWS_CA_BUNDLE cannot be read") from None
        return HTTPSConnection(host, timeout=self._connect_seconds, context=self._context), False

    def _give_back(self, place: tuple[str, str], connection: HTTPConnection) -> None:
        with self._guard:
            idle = self._idle.setdefault(place, [])
            if len(idle) < _IDLE_CONNECTIONS:
                idle.append(connection)
                return
        connection.close()

    def _refusal(self, reason: str) -> _RefusedError:
        if not self.is_refused:
            logger.info("presigned URLs are not used: %s", reason)
        self.is_refused = True
        return _RefusedError(reason)


class PresignedObject:
    """An object that is open for reading, as a file of pyarrow is.

    Args:
        gets: fetches its bytes.
        key: bucket and name.
        mark: its ETag.
        file: the same object, opened by pyarrow.
    """

    def __init__(
        self,
        gets: PresignedGets,
        key: str,
        mark: str,
        file: Any,  # noqa: ANN401
    ) -> None:
        self._gets, self._key, self._mark, self._file = gets, key, mark, file
        self._url = ""
        self._signed_at = 0.0
        self._is_left = False  # to pyarrow

    @property
    def compares(self) -> bool:
        """Whether all bytes so far were compared with the version that was opened."""
        return not (self._is_left or self._gets.is_refused)

    def read_at(self, n_bytes: int, start: int) -> Any:  # noqa: ANN401
        """Return bytes of the object, something with a buffer.

        Raises:
            OSError: a request failed; another one may succeed.
        """
        if self.compares:
            try:
                return self._presigned_read(n_bytes, start)
            except _RefusedError:
                pass
            except _OtherObjectError:
                # The caller asks pyarrow whether this is true. If it is not, pyarrow reads on.
                self._is_left = True
                raise
        return self._file.read_at(n_bytes, start)

    def _presigned_read(self, n_bytes: int, start: int) -> NDArray[np.uint8]:
        now = monotonic()
        if not self._url or now > self._signed_at + _RENEWED_SECONDS:
            self._url, self._signed_at = self._gets.url(self._key), now
        return self._gets.get(self._url, self._mark, start, n_bytes)

    def close(self) -> None:
        """Close the object."""
        self._file.close()


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what this thread signs out of the log: botocore logs all of it, with the key."""
    logging.getLogger("botocore.auth").addFilter(_is_of_others)  # one filter, however often
    _signing.is_under_way = True
    try:
        yield
    finally:
        _signing.is_under_way = False


def _is_of_others(_record: logging.LogRecord) -> bool:
    return not getattr(_signing, "is_under_way", False)


def _receive(response: HTTPResponse, window: memoryview) -> None:
    """Fill a window with the body of an answer."""
    at = 0
    try:
        while at < len(window):
            count = response.readinto(window[at:])
            if not count:
                raise OSError(f"only {at} bytes came")
            at += count
    except HTTPException as err:
        raise OSError(f"only {at} bytes came: {err}") from None
