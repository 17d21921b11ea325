"""Which file system a path is in, and which options are for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyarrow import ArrowInvalid

from rmqstore.errors import OptionError, RemoteReadError, UnsupportedFeatureError
from rmqstore.storage.files import remote_location
from rmqstore.storage.files.remote_location import locate, options_by_path, taken_by


def test_an_option_is_for_the_stores_that_take_it() -> None:
    given = {"region": "x", "endpoint": "http://h", "sas_token": "t"}
    paths = ["/local", "s3://a/b", "abfs://c@d/e"]
    found = options_by_path(paths, given)
    assert found[paths[0]] == {}
    assert found[paths[1]] == {"region": "x", "endpoint": "http://h"}
    assert found[paths[2]] == {"sas_token": "t", "endpoint": "http://h"}
    assert options_by_path(["s3://a/b"], None) == {"s3://a/b": {}}
    assert taken_by("/local", given) == {}


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (["/local"], "a store on the local disk takes none"),
        (["/local", "/other"], "a store on the local disk takes none"),
        (["s3://a/b", "/local"], "'sas_token' is not an option of s3://"),
        (["hdfs://a/b"], "'region', 'sas_token' is not an option of hdfs://"),
    ],
)
def test_an_option_that_no_store_takes_is_refused(paths: list[str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        options_by_path(paths, {"region": "x", "sas_token": "t"})


ANONYMOUS, BOTH = {"anonymous": True}, {"access_key": "K", "secret_key": "K"}
S3, GS, ABFS = "s3://bucket/a", "gs://a/b", "abfs://a@b/c"


@pytest.mark.parametrize(
    ("uri", "options", "said"),
    [
        (S3, {"access_key": "K"}, "access_key needs secret_key too"),
        (S3, {"secret_key": "K"}, "secret_key needs access_key too"),
        (S3, {"session_token": "K"}, "session_token needs access_key and secret_key too"),
        (S3, BOTH | ANONYMOUS, "anonymous and access_key exclude each other"),
        (GS, {"access_token": "K"} | ANONYMOUS, "anonymous and access_token exclude each other"),
        (ABFS, {"account_key": "K", "sas_token": "K"}, "account_key and sas_token exclude"),
        (S3, {"endpoint": "ftp://K"}, "endpoint must be like"),
        (S3, {"endpoint": ""}, "endpoint must be like"),
        (S3, {"endpoint": "http://K:K@h"}, "endpoint must be like"),
        (S3, {"connect_timeout": "abc"}, "must be a number of seconds"),
        ("hdfs://host:abc/x", {}, "the port must be a number"),
        ("ftp://a/b", {}, "no file system is known for ftp://"),
        ("s3n://a/b", {}, "write s3://"),
        ("wasbs://a@b/c", {}, "write abfss://"),
        ("s3://", {}, "name a bucket or container, as in s3://name/folder"),
    ],
)
def test_options_that_do_not_go_together_and_wrong_uris_say_what_to_write(
    uri: str, options: dict[str, Any], said: str
) -> None:
    error = UnsupportedFeatureError if said.startswith(("write", "no file")) else OptionError
    with pytest.raises(error, match=said) as caught:
        locate(uri, options)
    assert "K" not in str(caught.value)


@pytest.mark.parametrize("filesystem", ["nope", 5, Path("/")])
def test_what_is_not_a_file_system_is_refused(filesystem: object) -> None:
    with pytest.raises(OptionError, match="must be a file system of pyarrow"):
        locate("a/b", filesystem=filesystem)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_HOME", "JAVA_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.delenv(name, raising=False)
    error = OSError("Unable to load libhdfs: libhdfs.so: cannot open\nand more")
    monkeypatch.setattr("pyarrow.fs.HadoopFileSystem", mock.Mock(side_effect=error))
    with pytest.raises(UnsupportedFeatureError, match="set JAVA_HOME, HADOOP_HOME") as caught:
        locate("hdfs://a/b")
    assert "\n" not in str(caught.value)


def test_other_errors_of_a_library_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    make = mock.Mock(side_effect=ArrowInvalid("a wrong thing"))
    monkeypatch.setitem(remote_location._MAKERS, "hdfs", ((), make, False))
    with pytest.raises(RemoteReadError, match="a wrong thing"):
        locate("hdfs://a/b")
