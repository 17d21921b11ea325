"""Help: each verb has a group and two examples that run; a shell completes topics and groups."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

import manual
from command_line import examples_of, refusal, success
from goldens import Golden
from rmqstore.cli import main
from rmqstore.cli.verbs import VERBS
from rmqstore.read.views.schema import VIEWS

WITHOUT_A_BROKER = {"follow"}  # the source is a broker, which no example has
WITHOUT_A_STORE = {"kafka", *WITHOUT_A_BROKER}


def helped(*words: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "120")
        return success(*words, "--help").stdout


def test_every_verb_is_in_a_group() -> None:
    text = helped()
    assert "─ Commands ─" not in text, "the group of what is in no group"
    assert all(f"│ {verb} " in text for verb in VERBS)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_help_of_a_verb_begins_as_the_list_says_and_ends_with_two_examples(verb: str) -> None:
    text, command = helped(verb), main.verb(verb)
    begin = " ".join((command.help or "").partition("\n\n")[0].split())
    assert begin.startswith(VERBS[verb].summary)
    examples = examples_of(command)
    assert len(examples) == 2
    assert text.split()[-len(" ".join(examples).split()) :] == " ".join(examples).split()
    if verb not in WITHOUT_A_STORE:
        assert text.index("─ Options ─") < text.index("─ Which store ─")
    flags = re.findall(r"^│ (?:[* ]  )?(--[a-z-]+) ", text, re.MULTILINE)
    assert len(flags) == len(set(flags))
    if verb not in WITHOUT_A_STORE:
        assert {"--help", "--format"} <= {*flags} or verb in ("import", "report"), flags


def test_the_list_of_verbs_is_shown_without_what_the_verbs_need() -> None:
    script = (
        "import sys; from rmqstore.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "sys.exit(bool({'numpy', 'pyarrow', 'rmqstore.cli.common'} & {*sys.modules}))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_every_example_runs(
    golden_store: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manual.make_places(golden_store, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # as doctor wants it
    for verb in VERBS.keys() - WITHOUT_A_BROKER:
        for example in examples_of(main.verb(verb)):
            name, *words = shlex.split(manual.placed(example, tmp_path))
            assert (name, words[0]) == ("rmqstore", verb)
            success(*words)


def test_errors_are_one_line_without_a_frame() -> None:
    assert refusal("stat").splitlines()[-1].startswith("Error: Missing argument 'PATH'")


@pytest.mark.parametrize(
    ("words", "incomplete", "completed"),
    [
        (["stat", "STORE", "-t"], "LiveT", ["LiveTimer", "LiveTx"]),
        (["topics", "STORE", "-t"], "LiveTx", ["LiveTx"]),
        (["dump", "STORE", "-t"], "nothing", []),
        (["dump", "-t"], "Live", []),
        (["dump", "STORE/commitlog", "-t"], "LiveTx", ["LiveTx"]),
        (["dump", "-c", "CONF", "-t"], "LiveTx", ["LiveTx"]),
        (["verify", "-c", "CONF", "--json"], "--ov", ["--overwrite"]),
        (["get", "STORE", "496", "-t"], "LiveTx", ["LiveTx"]),
        (["groups", "STORE", "-g"], "CG_r", ["CG_retry"]),
        (["view", "consumed", "-c", "CONF", "-g"], "CG_s", ["CG_sql"]),
        (["assign", "STORE", "-g"], "CG_part", ["CG_part"]),
        (["stat", "STORE"], "--fail", ["--fail-if-empty"]),
        ([], "des", ["describe"]),
    ],
    ids=str,
)
def test_a_shell_completes_topics_options_and_verbs(
    live: Path, tmp_path: Path, words: list[str], incomplete: str, completed: list[str]
) -> None:
    store = str(live)
    shell = ShellComplete(main, {}, "rmqstore", "_RMQSTORE_COMPLETE")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={store}\n")
    given = [word.replace("STORE", store).replace("CONF", str(conf)) for word in words]
    assert [item.value for item in shell.get_completions(given, incomplete)] == completed


def test_views_are_named_as_documented_and_taken_in_any_case(live: Path) -> None:
    shown = " ".join(success("view", "--help").output.split())
    assert all(name in shown for name in VIEWS)
    one, other = (success("view", name, live).stdout for name in ("deadLetters", "DEADletters"))
    assert one == other
    assert "'deadLetters'" in refusal("view", "nope", live)
