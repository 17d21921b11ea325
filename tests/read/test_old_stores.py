"""Stores of RocketMQ 3.2.6 and 4.5.2, judged by their own releases; golden/README.md."""

from __future__ import annotations

import base64

import pytest

import goldens
import rmqstore
from goldens import Golden
from reading import read
from rmqstore.inspect.describe import describe
from written import require_valid

OLD = ("3.2.6-clean", "4.5.2-killed")


@pytest.mark.parametrize("name", OLD)
def test_every_message_is_what_its_own_release_returns(golden_store: Golden, name: str) -> None:
    expected = {
        (row["topic"], row["queueId"], row["queueOffset"]): base64.b64decode(row["bodyBase64"])
        for row in goldens.lines(name, "expected")
    }
    rows = read(golden_store(name), columns="topic,queueId,queueOffset,body")
    found = {(row["topic"], row["queueId"], row["queueOffset"]): row["body"] for row in rows}
    assert found == expected


@pytest.mark.parametrize("name", OLD)
def test_a_valid_store_of_an_old_release_gives_no_finding(golden_store: Golden, name: str) -> None:
    require_valid(golden_store(name))


def test_the_release_of_a_store_without_marks_is_the_oldest(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("3.2.6-clean")) as store:
        assert describe([store]).column("version").to_pylist() == ["3.2 or later"]


def test_index_files_after_one_that_is_built_again_are_built_again_too(copied: Golden) -> None:
    root = copied("4.5.2-killed")
    rmqstore.open(root, "a").close()
    require_valid(root)
    with rmqstore.open(root) as store:
        for row in goldens.lines("4.5.2-killed", "keys"):
            found = store.query(row["topic"], row["key"])
            assert {one.commitLogOffset for one in found.messages} >= set(row["physicalOffsets"])
