"""The page of the manual on what a follower decides has every phase, question, event and action."""

from __future__ import annotations

from pathlib import Path

from rmqstore.replica import comparing, dispatch, due, ending, events
from rmqstore.replica.live_state import Phase

PAGE = Path(__file__).parents[2] / "docs" / "follow-states.md"


def classes() -> tuple[list[type], list[type]]:
    """Return the classes of events and of actions, in the order of the module."""
    found = [
        each
        for each in vars(events).values()
        if isinstance(each, type) and each.__module__ == events.__name__ and issubclass(each, tuple)
    ]
    first, last = found.index(events.Started), found.index(events.Failed)
    return found[first : last + 1], found[last + 1 :]


def first_line(kind: type) -> str:
    return str(kind.__doc__).strip().split("\n")[0].rstrip(".")


def tables() -> dict[str, list[str]]:
    happen, done = classes()
    changes = {
        "an end is cut": comparing.CUT,
        "a copy without a record begins elsewhere": comparing.BEGIN_AGAIN,
        "old files are deleted": due.RETAIN,
        "the same where queues are not built": due.RETAIN_UNBUILT,
        "the end": ending.COMPLETE,
    }
    steps = {name: [step.__name__.lstrip("_") for step in each] for name, each in changes.items()}
    return {
        "Phases": table("phase", {phase.name: phase.value for phase in Phase}),
        "Questions": table("question", {each.name: each.value for each in events.Question}),
        "What can happen": table("event", {kind.__name__: first_line(kind) for kind in happen}),
        "What is done": table("action", {kind.__name__: first_line(kind) for kind in done}),
        "Steps of a change": [
            "| change | steps |",
            "| --- | --- |",
            *(f"| {name} | `{'`, `'.join(names)}` |" for name, names in steps.items()),
        ],
    }


def table(head: str, rows: dict[str, str]) -> list[str]:
    return [f"| {head} | |", "| --- | --- |", *(f"| `{name}` | {rows[name]} |" for name in rows)]


def test_the_page_has_all_of_them() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for heading, rows in tables().items():
        assert f"## {heading}\n" in text
        assert "\n".join(rows) in text, heading


def test_every_event_is_decided_about() -> None:
    happen, _ = classes()
    assert set(happen) == set(dispatch.HANDLERS) | set(dispatch.ANSWERS)
