"""Spark's own settings of S3, as a value of option ``storageOptions``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX = "spark.hadoop.fs.s3a."
_NAMES = {
    "endpoint": "endpoint",
    "endpoint.region": "region",
    "access.key": "access_key",
    "secret.key": "secret_key",
    "session.token": "session_token",
}
_ANONYMOUS = "AnonymousAWSCredentialsProvider"


def s3a_options(spark: SparkSession) -> str:
    """Return the settings ``spark.hadoop.fs.s3a.*`` of a session for option ``storageOptions``.

    Spark passes them to no Python data source, so a read has to be given them. Settings of single
    buckets are left out.
    """

    def setting(name: str) -> str | None:
        return spark.conf.get(_PREFIX + name, None)

    options = {ours: value for theirs, ours in _NAMES.items() if (value := setting(theirs))}
    endpoint = options.get("endpoint", "")
    if endpoint and "://" not in endpoint:
        scheme = "https"
        if (setting("connection.ssl.enabled") or "").lower() == "false":
            scheme = "http"
        options["endpoint"] = f"{scheme}://{endpoint}"
    if (setting("path.style.access") or "").lower() == "false" and endpoint:
        options["virtual_addressing"] = "true"
    if _ANONYMOUS in (setting("aws.credentials.provider") or ""):
        options["anonymous"] = "true"
    return json.dumps(options)
