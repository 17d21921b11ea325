"""Locations of stores: the local disk, or the file system of a URI or of the caller."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from os import environ
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from pyarrow import ArrowException

from rmqstore import platforms
from rmqstore.errors import (
    NotPermittedError,
    OptionError,
    RemoteReadError,
    UnsupportedFeatureError,
)
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.remote_storage import RemoteStorage
from rmqstore.storage.files.storage import Storage, UriPath, is_folder, path_of

S3_OPTIONS: Final = (
    "endpoint", "region", "anonymous", "access_key", "secret_key", "session_token",
    "connect_timeout", "virtual_addressing",
)  # fmt: skip
_CREDENTIALS: Final = ("access_key", "secret_key", "session_token")
_REGIONS: Final = (
    "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
)  # fmt: skip
_CHECKSUMS: Final = "AWS_RESPONSE_CHECKSUM_VALIDATION"
_CONNECT_SECONDS: Final = 5.0

Path = str | os.PathLike[str]
Options = Mapping[str, object]
P = TypeVar("P", bound=Path)
V = TypeVar("V")
_OPTIONS: Final = "`storage_options`"

SECRETS: Final = (
    "access_key", "secret_key", "session_token", "access_token", "account_key", "sas_token",
    "security_token",
)  # fmt: skip
_GCS = ("endpoint", "anonymous", "access_token")
_AZURE = ("endpoint", "account_key", "sas_token")
_HDFS = ("user", "kerberos_ticket")
RUNNING_BROKERS: Final = "rocketmq"  # the scheme of the addresses of name servers
_OTHER_NAMES: Final = {"s3n": "s3", "gcs": "gs", "wasb": "abfs", "wasbs": "abfss"}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)(.*)", re.DOTALL)
_MAGIC = re.compile(r"[*?[]")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}(?:[;,].*)?")
_RETRY_SECONDS = 10  # of one request, which is made again some times


def s3_filesystem(bucket: str, given: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return a ``pyarrow.fs.S3FileSystem``.

    Args:
        bucket: the bucket, whose region is looked up if none is known.
        given: the options that were set, of :data:`S3_OPTIONS`.

    Raises:
        OptionError: the value of an option is not of its kind.
    """
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    require_all_or_none(given, *(_CREDENTIALS if "session_token" in given else _CREDENTIALS[:2]))
    if boolean(given, "anonymous"):
        require_at_most_one(given, "anonymous", "access_key")
    arguments: dict[str, Any] = {
        name: str(given[name]) for name in (*_CREDENTIALS, "region") if name in given
    }
    has_endpoint = "endpoint" in given
    if has_endpoint:
        arguments["scheme"], arguments["endpoint_override"] = endpoint_of(given["endpoint"])
    has_region = any(environ.get(name) for name in _REGIONS)
    if "region" not in given and not has_endpoint and not has_region:
        with suppress(OSError):
            arguments["region"] = resolve_s3_region(bucket)
    if "virtual_addressing" in given:
        arguments["force_virtual_addressing"] = boolean(given, "virtual_addressing")
    with _without_checksums():
        return S3FileSystem(
            anonymous=boolean(given, "anonymous"),
            connect_timeout=number(given, "connect_timeout", _CONNECT_SECONDS),
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=3),
            **arguments,
        )


@contextmanager
def _without_checksums() -> Iterator[None]:
    """Let clients of S3 that are made in this context compute no checksums of reads.

    It would do so although a part of an object comes without a checksum to compare with, and take
    a third more CPU time. A setting of the user's own is left as it is.
    """
    if _CHECKSUMS in environ:
        yield
        return
    environ[_CHECKSUMS] = "when_required"
    try:
        yield
    finally:
        environ.pop(_CHECKSUMS, None)


def endpoint_of(value: object) -> tuple[str, str]:
    """Return the scheme, https if there is none, and the rest of an address.

    Raises:
        OptionError: it is not an address of HTTP. The text is not shown, as it may have secrets.
    """
    scheme, separator, rest = str(value).rstrip("/").partition("://")
    if not separator:
        scheme, rest = "https", scheme
    if scheme.lower() not in ("http", "https") or not rest or "@" in rest:
        raise OptionError(
            "`storage_options`: endpoint must be like http://host:9000 or https://host"
        )
    return scheme.lower(), rest


def require_all_or_none(given: Mapping[str, object], *names: str) -> None:
    """Refuse options of which only some are set.

    Args:
        given: the options that were set.
        names: those that go together.

    Raises:
        OptionError: some of them are missing.
    """
    missing = [name for name in names if name not in given]
    if missing and len(missing) < len(names):
        needed = next(name for name in names if name in given)
        raise OptionError(f"`storage_options`: {needed} needs {' and '.join(missing)} too")


def require_at_most_one(given: Mapping[str, object], first: str, second: str) -> None:
    """Refuse two options that exclude each other.

    Args:
        given: the options that were set.
        first, second: those of which one may be set.

    Raises:
        OptionError: both of them are.
    """
    if first in given and second in given:
        raise OptionError(f"`storage_options`: {first} and {second} exclude each other")


def number(given: Mapping[str, object], name: str, default: float) -> float:
    """Return a number of seconds.

    Raises:
        OptionError: the value is not a number.
    """
    try:
        return float(str(given.get(name, default)))
    except ValueError:
        raise OptionError(f"`storage_options`: {name} must be a number of seconds") from None


def boolean(given: Mapping[str, object], name: str) -> bool:
    """Return whether an option is set to true; it is not by default.

    Raises:
        OptionError: the value is neither true nor false.
    """
    value = str(given.get(name, False)).lower()
    if value not in ("true", "false"):
        raise OptionError(f"`storage_options`: {name} {value!r} must be true or false")
    return value == "true"


def is_uri(path: Path) -> bool:
    """Return whether a path names another file system than the local one."""
    uri = _URI.fullmatch(os.fspath(path))
    if uri is None:
        return False
    return uri[1].lower() in _MAKERS or (len(uri[2]) > 1 and uri[1].lower() != "file")


def is_live(path: object) -> bool:
    """Return whether a path is the address of the name servers of running brokers."""
    return isinstance(path, str | os.PathLike) and os.fspath(path).lower().startswith(
        f"{RUNNING_BROKERS}:"
    )


def require_known(path: Path, options: Options | None = None) -> None:
    """Refuse a URI of a file system that is not known, or with credentials, and unknown options.

    Raises:
        OptionError: there are credentials in the URI, which no text shows, or an option is not one
            of the file system that has the path.
        UnsupportedFeatureError: no file system of that scheme is known.
    """
    if not is_uri(path):
        if options:
            raise OptionError("`storage_options`: a store on the local disk takes none")
        return
    scheme, _, rest = os.fspath(path).partition(":")
    scheme, host = scheme.lower(), rest.lstrip("/").partition("/")[0]
    if scheme == RUNNING_BROKERS:
        raise UnsupportedFeatureError(
            f"{scheme}://{rest.lstrip('/')}: running brokers serve nothing but messages, and this "
            "needs the files of a store, or of a copy that `rmqstore follow` keeps"
        )
    if scheme in _OTHER_NAMES:
        raise UnsupportedFeatureError(
            f"no file system is known for {scheme}://: write {_OTHER_NAMES[scheme]}://"
        )
    has_user = ":" in host.rpartition("@")[0] or ("@" in host and not scheme.startswith("abfs"))
    if has_user:
        raise OptionError(
            f"{scheme}://***@{host.rpartition('@')[2]}: credentials do not belong in a URI; "
            "leave them to the environment, or set `storage_options=`"
        )
    if scheme not in _MAKERS:
        raise UnsupportedFeatureError(
            f"no file system is known for {scheme}://: hand one over with `filesystem=`, or "
            f"use one of {', '.join(f'{name}://' for name in _MAKERS)}"
        )
    names, _, has_container = _MAKERS[scheme]
    if has_container and not host:
        raise OptionError(f"{scheme}://: name a bucket or container, as in {scheme}://name/folder")
    unknown = sorted(set(options or ()) - set(names))
    if unknown:
        raise OptionError(
            f"{_OPTIONS}: {', '.join(map(repr, unknown))} is not an option of {scheme}://, "
            f"which has {', '.join(names)}"
        )


def require_path(path: Path) -> None:
    """Refuse the address of a server, and a home folder that no shell has replaced.

    Raises:
        OptionError: there is no file or folder of that name, and it is one of these.
    """
    text = os.fspath(path)
    if not (text.startswith("~") or _ADDRESS.fullmatch(text)) or LOCAL.exists(text):
        return
    if text.startswith("~"):
        home = os.path.expanduser(text)  # noqa: PTH111 - of text that may be no path
        raise OptionError(f"{text}: only shells replace ~: write {home}")
    raise OptionError(
        f"{text} is the address of a server and not a folder: running brokers of RocketMQ are read "
        f"as {RUNNING_BROKERS}://{text}"
    )


def options_by_path(
    paths: Iterable[P], options: Mapping[str, V] | None
) -> dict[P, Mapping[str, V]]:
    """Return for each path of a read those of its options that the file system of the path takes.

    Args:
        paths: paths and URIs.
        options: of the whole read.

    Raises:
        OptionError: no file system of the read knows an option; or as :func:`require_known`.
    """
    every, given = [*paths], options or {}
    known = {name for path in every for name in _option_names(path)}
    unknown = {name: value for name, value in given.items() if name not in known}
    for path in every:
        require_known(path, unknown)
    return {path: taken_by(path, given) for path in every}


def taken_by(path: Path, options: Mapping[str, V] | None) -> Mapping[str, V]:
    """Return the options that the file system of a path knows."""
    given = options or {}
    return {name: given[name] for name in _option_names(path) if name in given}


def _option_names(path: Path) -> tuple[str, ...]:
    scheme = os.fspath(path).partition(":")[0].lower()
    return _MAKERS[scheme][0] if is_uri(path) and scheme in _MAKERS else ()


def locate(
    path: Path, options: Options | None = None, filesystem: object = None
) -> tuple[Path, Storage]:
    """Return the folder of a store as a name in its storage, and the storage.

    Args:
        path: a local path, a ``file://`` URI, or the URI of another file system.
        options: how to reach it; see ``docs/remote.md``.
        filesystem: the file system that has the path, of pyarrow or of fsspec.

    Raises:
        OptionError: an option is unknown, or a URI has credentials in it.
        UnsupportedFeatureError: no file system of that scheme is known.
    """
    text = os.fspath(path)
    if filesystem is not None:
        if options:
            raise OptionError(f"{_OPTIONS}: `filesystem=` knows how to reach it already")
        return _handed_over(text, filesystem)
    require_known(path, options)
    if not is_uri(path):
        require_path(path)
        return local_path(path), LOCAL
    scheme, rest = _split(text)
    host, _, below = rest.partition("/")
    _, make, has_container = _MAKERS[scheme]
    given = {name: value for name, value in (options or {}).items() if value is not None}
    secrets = [str(given[name]) for name in SECRETS if name in given]
    try:
        made = make(host, given)
    except OptionError:
        raise
    except (OSError, ValueError, TypeError, ArrowException) as err:
        reason = str(err)
        if secrets:  # which the reason might hold
            reason = f"{type(err).__name__} in storage_options, not shown because it has secrets"
        raise RemoteReadError(f"{scheme}://{host}", reason, 1) from None
    key = f"{host.partition('@')[0]}/{below}" if has_container else f"/{below}"
    name = name_in_storage(path)
    return name, RemoteStorage(made, str(name), key, secrets)


def name_in_storage(path: Path) -> Path:
    """Return the name of a path in its storage, as :func:`locate` does, without a request."""
    if not is_uri(path):
        return local_path(path)
    scheme, rest = _split(os.fspath(path))
    return UriPath(f"{scheme}://{rest}")


def _split(text: str) -> tuple[str, str]:
    """Return the scheme of a URI, and its host with the path below it."""
    uri = _URI.fullmatch(text)
    assert uri is not None
    scheme, rest = uri[1].lower(), uri[3].rstrip("/")
    if scheme == "hdfs" and len(uri[2]) > 2:  # the host is that of Hadoop's configuration
        rest = f"default/{rest}"
    return scheme, rest


def is_pattern(path: Path) -> bool:
    """Return whether a path has ``*``, ``?`` or ``[`` in it."""
    return _MAGIC.search(os.fspath(path)) is not None


def matching(pattern: str, options: Options | None = None) -> list[str]:
    """Return the folders that a path or URI with ``*``, ``?`` or ``[`` stands for, sorted.

    A ``/`` is matched by itself only, and a dot at the beginning of a name by a dot. Raises as
    :func:`locate` does.
    """
    if not is_uri(pattern):
        pattern = platforms.with_slashes(pattern)
    first, *parts = pattern.rstrip("/").split("/")
    if is_uri(pattern):
        scheme, _, rest = pattern.rstrip("/").partition("://")
        host, *parts = rest.split("/")
        first = f"{scheme}://{host}"
    elif is_pattern(first):
        first, parts = ".", [first, *parts]
    n_plain = next((row for row, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    folders = ["/".join([first, *parts[:n_plain]])]
    _, storage = locate(folders[0] or "/", options)
    for part in parts[n_plain:]:
        if not _MAGIC.search(part):  # no folder has to be listed for it
            below = (f"{folder}/{part}" for folder in folders)
            folders = [folder for folder in below if _may_be_entered(storage, folder)]
            continue
        folders = [
            f"{folder}/{entry.name}"
            for folder in folders
            for entry in storage.list_folder(folder or "/")
            if entry.is_folder
            and fnmatchcase(entry.name, part)
            and part.startswith(".") >= entry.name.startswith(".")
        ]
    return sorted(folders)


def _may_be_entered(storage: Storage, folder: str) -> bool:
    try:
        return is_folder(storage, path_of(folder))
    except NotPermittedError:  # as for a shell
        return False


def made_absolute(path: Path) -> str:
    """Return a local path in the form that means the same in processes of other folders.

    Raises:
        OptionError: as :func:`require_path`.
    """
    local = pathlib.Path(local_path(path)).expanduser()
    require_path(local)
    return str(local.absolute())


def local_path(path: Path) -> Path:
    """Return the local path that a ``file:`` URI names, and any other path unchanged.

    Such a URI has an absolute path: ``file:x`` is not a URI but the local name itself.

    Raises:
        UnsupportedFeatureError: the URI names another computer.
    """
    uri = _URI.fullmatch(os.fspath(path))
    if uri is None or uri[1].lower() != "file":
        return path
    rest = uri[2] + uri[3]
    if rest.startswith("//"):
        host, slash, below = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise UnsupportedFeatureError(f"{uri[0]}: a file of another computer cannot be read")
        rest = slash + below
    return platforms.path_of_uri(unquote(rest))


def _handed_over(text: str, filesystem: Any) -> tuple[Path, Storage]:  # noqa: ANN401
    """Return a path in a file system of the caller, and a storage of it."""
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    is_arrow = isinstance(filesystem, FileSystem)
    if not (is_arrow or (hasattr(filesystem, "protocol") and hasattr(filesystem, "cat_file"))):
        kind = type(filesystem).__name__
        raise OptionError(
            f"`filesystem` is a {kind}: must be a file system of pyarrow.fs or of fsspec"
        )
    uri = _URI.fullmatch(text)
    if is_arrow:
        scheme, key = filesystem.type_name, uri[3] if uri else text
    else:
        protocol = filesystem.protocol
        scheme = protocol if isinstance(protocol, str) else protocol[0]
        key = str(filesystem._strip_protocol(text))  # noqa: SLF001 - fsspec's own, documented
        filesystem = PyFileSystem(FSSpecHandler(filesystem))
    scheme = re.sub(r"[^A-Za-z0-9]", "-", uri[1] if uri else scheme)
    root = str(UriPath(f"{scheme}://{key.strip('/')}"))
    return UriPath(root), RemoteStorage(filesystem, root, key)


def _gcs(_bucket: str, given: dict[str, Any]) -> Any:  # noqa: ANN401
    from pyarrow.fs import GcsFileSystem

    arguments: dict[str, Any] = {"anonymous": boolean(given, "anonymous")}
    if arguments["anonymous"]:
        require_at_most_one(given, "anonymous", "access_token")
    if "access_token" in given:
        arguments["access_token"] = str(given["access_token"])
    if "endpoint" in given:
        arguments["scheme"], arguments["endpoint_override"] = endpoint_of(given["endpoint"])
    return GcsFileSystem(retry_time_limit=timedelta(seconds=_RETRY_SECONDS), **arguments)


def _azure(host: str, given: dict[str, Any]) -> Any:  # noqa: ANN401
    try:
        from pyarrow.fs import AzureFileSystem
    except ImportError as err:
        raise UnsupportedFeatureError("abfs://: this build of pyarrow has no Azure") from err
    require_at_most_one(given, "account_key", "sas_token")
    account = host.rpartition("@")[2].partition(".")[0]
    arguments: dict[str, Any] = {
        name: str(given[name]) for name in ("account_key", "sas_token") if name in given
    }
    if "endpoint" in given:
        scheme, authority = endpoint_of(given["endpoint"])
        arguments |= {
            f"{kind}_storage_{part}": value
            for kind in ("blob", "dfs")
            for part, value in (("scheme", scheme), ("authority", authority))
        }
    return AzureFileSystem(account_name=account, **arguments)


def _hdfs(host: str, given: dict[str, Any]) -> Any:  # noqa: ANN401
    from pyarrow.fs import HadoopFileSystem

    name, _, port = host.partition(":")
    if port and not port.isdigit():
        raise OptionError(f"hdfs://{host}: the port must be a number")
    user, ticket = given.get("user"), given.get("kerberos_ticket")
    try:
        return HadoopFileSystem(name, int(port or 0), user=user, kerb_ticket=ticket)
    except OSError as err:
        if "Unable to load lib" not in str(err):
            raise
        what = str(err).partition(":")[0].partition("\n")[0]
        raise UnsupportedFeatureError(
            f"hdfs://{host}: {what}. HDFS is read by Hadoop's own library in a JVM: set JAVA_HOME, "
            "HADOOP_HOME, and CLASSPATH to what `hadoop classpath --glob` prints"
        ) from None


Maker = Callable[[str, dict[str, Any]], Any]

# By scheme: the options, what makes the file system, and whether the host is a part of its paths.
_MAKERS: Final[dict[str, tuple[tuple[str, ...], Maker, bool]]] = {
    "s3": (S3_OPTIONS, s3_filesystem, True),
    "s3a": (S3_OPTIONS, s3_filesystem, True),
    "gs": (_GCS, _gcs, True),
    "abfs": (_AZURE, _azure, True),
    "abfss": (_AZURE, _azure, True),
    "hdfs": (_HDFS, _hdfs, False),
}
