"""Names of topics and groups that no store knows."""

from __future__ import annotations

import pytest

from command_line import rows, run, success
from goldens import Golden


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["groups", "-t", "LivePlan"], "no topic LivePlan"),
        (["query", "-t", "LivePlan", "-k", "key-1"], "no topic LivePlan"),
        (["query", "-t", "LivePlan", "--time", "-1h"], "no topic LivePlan"),
        (["view", "groups", "-t", "LivePlan"], "no topic LivePlan"),
        (["view", "deadLetters", "-g", "CG_prt"], "no consumer group CG_prt"),
        (["view", "consumed", "-g", "CG_prt"], "no consumer group CG_prt"),
        (["assign", "-c", "c1", "-g", "CG_prt"], "CG_prt has no offsets of any topic"),
    ],
)
@pytest.mark.parametrize("n_stores", [1, 2])
def test_unknown_names_are_errors_that_name_the_nearest(
    golden_store: Golden, arguments: list[str], message: str, n_stores: int
) -> None:
    stores = [golden_store("live"), golden_store("basic")][:n_stores]
    refused = run(*arguments, *stores)
    assert refused.exit_code == 2, refused.output
    assert message in refused.stderr
    assert ("LivePlain" if "topic L" in message else "CG_part") in refused.stderr.splitlines()[-1]


def test_names_that_one_store_of_several_knows_are_taken(golden_store: Golden) -> None:
    stores = [golden_store("live"), golden_store("basic")]
    for arguments in (
        ["groups", "-t", "LivePlain"],
        ["view", "deadLetters", "-g", "CG_retry"],
        ["view", "consumed", "-g", "CG_part"],
        ["query", "-t", "LivePlain", "-k", "key-1"],
    ):
        success(*arguments, *stores, "--fail-if-empty")
    assert rows("view", "deadLetters", *stores, "-g", "CG_part") == []
