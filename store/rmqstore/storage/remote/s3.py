"""Clients of S3, and of servers that speak its protocol, from ``storage_options``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from os import environ
from typing import Any, Final

from rmqstore.storage.remote.option_values import (
    boolean,
    endpoint_of,
    number,
    require_all_or_none,
    require_at_most_one,
)

OPTIONS: Final = (
    "endpoint", "region", "anonymous", "access_key", "secret_key", "session_token",
    "connect_timeout", "virtual_addressing",
)  # fmt: skip
_CREDENTIALS: Final = ("access_key", "secret_key", "session_token")
_CHECKSUMS: Final = "AWS_RESPONSE_CHECKSUM_VALIDATION"
_CONNECT_SECONDS: Final = 5.0


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
