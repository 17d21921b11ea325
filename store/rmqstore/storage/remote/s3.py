"""Clients of S3, and of servers that speak its protocol, from ``storage_options``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.util import find_spec
from os import environ, getpid
from typing import Any, Final

from rmqstore.storage.remote.option_values import (
    boolean,
    endpoint_of,
    number,
    require_all_or_none,
    require_at_most_one,
)
from rmqstore.storage.remote.presigned import PresignedGets

OPTIONS: Final = (
    "endpoint", "region", "anonymous", "access_key", "secret_key", "session_token",
    "connect_timeout", "virtual_addressing",
)  # fmt: skip
_CREDENTIALS: Final = ("access_key", "secret_key", "session_token")
_CHECKSUMS: Final = "AWS_RESPONSE_CHECKSUM_VALIDATION"
_CONNECT_SECONDS: Final = 5.0
_CLIENTS_KEPT: Final = 8


def s3_filesystem(bucket: str, given: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return a ``pyarrow.fs.S3FileSystem``.

    Args:
        bucket: the bucket, whose region is looked up if none is known.
        given: the options that were set, of :data:`OPTIONS`.

    Raises:
        OptionError: the value of an option is not of its kind.
    """
    from pyarrow.fs import resolve_s3_region

    require_all_or_none(given, *(_CREDENTIALS if "session_token" in given else _CREDENTIALS[:2]))
    if boolean(given, "anonymous"):
        require_at_most_one(given, "anonymous", "access_key")
    arguments: dict[str, Any] = {
        name: str(given[name]) for name in (*_CREDENTIALS, "region") if name in given
    }
    has_endpoint = "endpoint" in given
    if has_endpoint:
        arguments["scheme"], arguments["endpoint_override"] = endpoint_of(given["endpoint"])
    if "region" not in given and not has_endpoint and not _has_region():
        with suppress(OSError):
            arguments["region"] = resolve_s3_region(bucket)
    if "virtual_addressing" in given:
        arguments["force_virtual_addressing"] = boolean(given, "virtual_addressing")
    with _without_checksums():
        return _s3_client(given, arguments)


def _s3_client(given: Mapping[str, Any], arguments: dict[str, Any]) -> Any:  # noqa: ANN401
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    return S3FileSystem(
        anonymous=boolean(given, "anonymous"),
        connect_timeout=number(given, "connect_timeout", _CONNECT_SECONDS),
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=3),
        **arguments,
    )


@contextmanager
def _without_checksums() -> Iterator[None]:
    """Let a client of S3 that is made in this context add up no checksums of what it reads.

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


def _has_region() -> bool:
    names = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
    return any(environ.get(name) for name in names)


def presigned_gets(given: Mapping[str, Any], filesystem: Any) -> PresignedGets | None:  # noqa: ANN401
    """Return what fetches the bytes of objects in a file system of :func:`s3_filesystem`.

    It is kept for later reads with the same options, with its connections.

    Returns:
        None if botocore is not installed.
    """
    if find_spec("botocore") is None:
        return None
    of_environment = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    named = {"endpoint": of_environment, **given} if of_environment else given
    settings = tuple(sorted((name, str(value)) for name, value in named.items()))
    return _presigned_gets(settings, str(filesystem.region), getpid())


@lru_cache(_CLIENTS_KEPT)
def _presigned_gets(
    settings: tuple[tuple[str, str], ...],
    region: str,
    _process: int,  # a process that was forked makes connections of its own
) -> PresignedGets:
    given = dict(settings)
    seconds = number(given, "connect_timeout", _CONNECT_SECONDS)
    return PresignedGets(lambda: _signing_client(given, region), seconds)


def _signing_client(given: Mapping[str, str], region: str) -> Any:  # noqa: ANN401
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.session import Session

    arguments: dict[str, Any] = {"region_name": region}
    style = "auto"
    if "endpoint" in given:
        scheme, host = endpoint_of(given["endpoint"])
        arguments["endpoint_url"] = f"{scheme}://{host}"
        style = "path"
    if boolean(given, "virtual_addressing"):
        style = "virtual"
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    for own_name, name in zip(_CREDENTIALS, names, strict=True):
        if own_name in given:
            arguments[name] = given[own_name]
    signature = UNSIGNED if boolean(given, "anonymous") else "s3v4"
    config = Config(
        signature_version=signature,
        s3={"addressing_style": style},
        ignore_configured_endpoint_urls=True,  # which pyarrow, that opens the objects, has not read
    )
    return Session().create_client("s3", config=config, **arguments)
