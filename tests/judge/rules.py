"""What has to be true of our claims about a store, given what the original does with it.

A rule yields, in plain words, each claim that is not. ``after`` has the original's answers about
other stores by name: ``whole``, the store before anything befell it, and the copies that were
``rebuilt`` and ``appended`` to. What is not among them is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from judge.claims import MODES, SCANS, Claims, Rows
from judge.original import Answer

After = Mapping[str, Answer]
Rule = Callable[[Claims, Answer, After], Iterator[str]]
Places = dict[str, dict[int, int]]  # of each queue, the physical offset at each queue offset

MEGABYTES = 300
_SHOWN = 4  # offsets that a text names
# Kinds of findings that say of a queue, or of a store, that consumers do not get what they should.
_OF_QUEUE = (
    "unit",
    "named",
    "fewer",
    "name",
    "type",
    "database",
    "unbuilt",
    "gone",
    "lost",
    "kept",
)
_OF_STORE = ("name", "twins", "foreign", "start", "database", "check", "type")


# Ways in which we differ on purpose, each with its reason and the page that says so.


def is_taken_from_the_log(claims: Claims, _queue: str) -> bool:
    """A read gives messages whose units a crash took, which a broker may not build again.

    They are in the log, and a warning says how many they are (docs/crashed.md).
    """
    return any("taken from the log" in text for text in claims["queue FAILFAST"]["warnings"])


DIFFERENCES = (is_taken_from_the_log,)


# What claims and answers say.


def _value(claims: Claims, part: str, default: Any = None) -> Any:
    return claims[part].get("value", default)


def _findings(claims: Claims) -> list[dict[str, Any]]:
    return _value(claims, "verify", [])


def _places(rows: Rows) -> Places:
    """Return rows by queue offset; of the messages of one record the first one."""
    found: Places = {}
    for queue, of_queue in rows.items():
        before = None
        places = found.setdefault(queue, {})
        for queue_offset, physical_offset, *_ in of_queue:
            if physical_offset != before:
                places[queue_offset] = before = physical_offset
    return found


def _unserved(claims: Claims) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for one in _findings(claims):
        for start, stop in one["unserved"]:
            found.setdefault(one["place"], set()).update(range(start, stop))
    return found


def _is_named(claims: Claims, queue: str) -> bool:
    """Return whether a finding says that consumers of a queue do not get what they should."""
    topic, _, queue_id = queue.rpartition("-")
    names = (f"/{topic}/{queue_id}/", f"/{topic}/{queue_id}", f"/{topic}")
    return any(
        (one["kind"] in _OF_QUEUE and one["place"] == queue)
        or (one["kind"] in _OF_STORE and one["part"] == "log")
        or (one["kind"] in _OF_STORE and any(name in one["place"] for name in names))
        for one in _findings(claims)
    )


def _shown(offsets: Any) -> str:
    found = sorted(offsets)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(map(str, found[:_SHOWN])) + more


# What verify says.


def what_is_valid_starts_and_is_served_whole(
    claims: Claims, answer: Answer, _: After
) -> Iterator[str]:
    if _value(claims, "verify") != []:
        return
    if not answer["starts"]:
        yield f"verify finds nothing, and the original refuses it: {answer['refusal']}"
        return
    read, served = _places(_value(claims, "queue PERMISSIVE", {}).get("rows", {})), answer["served"]
    for queue, places in read.items():
        gone = places.items() - _places(served).get(queue, {}).items()
        if gone:
            yield f"{queue}: verify finds nothing, and {_shown(dict(gone))} are not served"


def it_starts_as_foretold(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    stops = [one for one in _findings(claims) if one["stops_broker"]]
    if stops and answer["starts"]:
        yield f"it starts although {stops[0]['place']}: {stops[0]['text']}"
    is_open = any(one["kind"] == "database" for one in _findings(claims))
    is_warned = any("does not start" in text for text in claims["verify"]["warnings"])
    if "value" in claims["verify"] and not (stops or is_open or is_warned or answer["starts"]):
        yield f"nothing says that it does not start: {answer['refusal']}"


def the_log_ends_as_foretold(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    end = _value(claims, "log end")
    if answer["starts"] and end is not None and end != answer["log"][1]:
        yield f"its log ends at {answer['log'][1]}, and should at {end}"


def what_is_said_not_to_be_served_is_not(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    if not answer["starts"]:
        return
    for queue, offsets in _unserved(claims).items():
        read = _places(_value(claims, "queue PERMISSIVE", {}).get("rows", {})).get(queue, {})
        served = _places(answer["served"]).get(queue, {})
        told = {at for at in offsets & served.keys() if read.get(at, served[at]) == served[at]}
        if told:
            yield f"{queue}: {_shown(told)} are served, and verify says that they are not"


def queue_offsets_are_given_again_as_foretold(
    claims: Claims, answer: Answer, _: After
) -> Iterator[str]:
    if not answer["starts"]:
        return
    foretold = {
        one["place"]: one["next_offset"]
        for one in _findings(claims)
        if one["next_offset"] is not None
    }
    ends = {
        f"{row['topic']}-{row['queueId']}": row["maxOffset"] for row in _value(claims, "stat", [])
    }
    for queue, given in answer["next"].items():
        if given is None:
            continue
        if queue in foretold and foretold[queue] != given:
            yield f"{queue}: the next message gets {given}, and should get {foretold[queue]}"
        elif (
            queue not in foretold
            and given < (ends.get(queue) or 0)
            and not _is_named(claims, queue)
        ):
            yield f"{queue}: the next message gets {given}, which nothing says; it ends at {ends[queue]}"


def it_loses_nothing_unsaid(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    """What the log and the queues still have is served, or it is said that it is not."""
    if not answer["starts"] or "value" not in claims["verify"]:
        return
    unserved, served = _unserved(claims), _places(answer["served"])
    end = answer["log"][1]
    for part in ("queue PERMISSIVE", "commitlog PERMISSIVE"):
        for queue, places in _places(_value(claims, part, {}).get("rows", {})).items():
            found = served.get(queue, {})
            if not queue or _is_named(claims, queue):
                continue
            in_queue = {*found.values()}
            lost = {
                at
                for at, place in places.items()
                if place not in in_queue and at not in unserved.get(queue, ()) and place < end
            }
            if lost:
                yield f"{queue}: {_shown(lost)} of {part} are not served, which nothing says"


# What reads give.


def reads_give_what_is_served(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    """FAILFAST gives it or fails, PERMISSIVE gives or names it, DROPMALFORMED counts it."""
    if not answer["starts"]:
        return
    for by in SCANS:
        for mode in MODES:
            part = f"{by} {mode}"
            if "error" in claims[part]:
                if mode != "FAILFAST":
                    yield f"{part}: {claims[part]['error']}: {claims[part]['text']}"
                continue
            found, damaged = claims[part]["value"]["rows"], claims[part]["value"]["damaged"]
            yield from (
                f"{part}: {text}"
                for text in _not_given(found, damaged, answer, by, claims[part]["warnings"])
            )


def _not_given(
    rows: Rows, damaged: Rows, answer: Answer, by: str, warnings: list[str]
) -> Iterator[str]:
    is_counted = any("dropped" in text or "data loss" in text for text in warnings)
    is_named = any(queue == "" or by == "commitlog" for queue in damaged)
    in_log = {row[1] for of_queue in rows.values() for row in of_queue}
    for queue, served in answer["served"].items():
        given = {tuple(row) for row in rows.get(queue, ())}
        given |= {(row[0], row[1], None) for row in rows.get(queue, ())}
        named = {row[0] for row in damaged.get(queue, ())}
        if by == "queue":
            missing = {
                at for at, place, crc in served if (at, place, crc) not in given and at not in named
            }
        else:
            missing = {at for at, place, _ in served if place not in in_log}
        if missing and not is_counted and not is_named:
            yield f"{queue}: {_shown(missing)} are served and not given"


def reads_give_nothing_else(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    """What is not served is given with a word: a finding or a warning."""
    if not answer["starts"]:
        return
    unserved, served = _unserved(claims), _places(answer["served"])
    for mode in MODES:
        part = f"queue {mode}"
        for queue, places in _places(_value(claims, part, {}).get("rows", {})).items():
            other = {
                at
                for at, place in places.items()
                if served.get(queue, {}).get(at) != place and at not in unserved.get(queue, ())
            }
            if not other or _is_named(claims, queue):
                continue
            if not any(differs(claims, queue) for differs in DIFFERENCES):
                yield f"{part}: {queue}: {_shown(other)} are given and not served"


def views_say_what_it_has(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    if not answer["starts"]:
        return
    for row in _value(claims, "stat", []):
        queue = f"{row['topic']}-{row['queueId']}"
        known = answer["queues"].get(queue)
        ours = [row["minOffset"], row["maxOffset"]]
        if known and known[1] != ours[1] and not _is_named(claims, queue) and row["reason"] is None:
            yield f"stat: {queue} ends at {ours[1]}, and has {known}"
    groups = _value(claims, "groups")
    if groups is not None and answer["groups"]:
        for name in groups.keys() | answer["groups"].keys():
            ours, known = groups.get(name), answer["groups"].get(name)
            if ours != known:
                yield f"groups: {name} is {ours}, and is {known}"


def look_ups_find_what_it_finds(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    if not answer["starts"]:
        return
    for key, known in answer.get("keys", {}).items():
        asked = claims["keys"].get(key, {})
        if "value" in asked and (missing := {*known} - {*asked["value"]}):
            yield f"{key}: {_shown(missing)} are not found"


# What is done with copies.


def remedies_do_what_they_promise(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    for command, done in claims["remedies"].items():
        if "error" in done:
            yield f"{command}: {done['error']}: {done['text']}"
            continue
        code, said = done["value"]["code"], done["value"]["stderr"]
        if code not in (0, 1) or "error:" in said:
            yield f"{command} ({done['kind']}): ends with {code}: {said[-300:]}"
            continue
        builds = command.startswith("rmqstore rebuild") and "--dry-run" not in command
        if done["changed"] and not builds:
            yield f"{command}: changes {done['changed'][:_SHOWN]}"
        if builds:
            kinds = {one["kind"] for one in done["verify"].get("value", [])}
            left = kinds & {"index", "unit", "queue", "unbuilt", "tags", "keys", "lost", "end"}
            if left:
                yield f"{command} ({done['kind']}): leaves {sorted(left)}"
        if "rows" in done:
            rows = _value(claims, "commitlog DROPMALFORMED", {}).get("rows", {})
            expected = sum(map(len, rows.values()))
            if done["rows"] < expected and "--scan commitlog" in command:
                yield f"{command}: exports {done['rows']} of {expected}"


def what_is_refused_changes_nothing(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    rebuild = claims["rebuild"]
    if rebuild["planning changed"]:
        yield f"a plan changes {rebuild['planning changed']}"
    is_planned = "value" in rebuild["plan"]
    if is_planned != ("value" in rebuild["done"]):
        told = rebuild["done" if is_planned else "plan"]
        yield f"planned or refused, but not done so: {told['error']}: {told['text']}"
    for name, done in (("rebuild", rebuild), ("append", claims["append"])):
        if done.get("changed"):
            yield f"{name} is refused and changes {done['changed'][:_SHOWN]}"


def it_starts_after_a_rebuild_and_serves_what_the_plan_says(
    claims: Claims, _: Answer, after: After
) -> Iterator[str]:
    answer, rebuild = after.get("rebuilt"), claims["rebuild"]
    if answer is None or "value" not in rebuild["done"]:
        return
    left = rebuild["verify"].get("value", [])
    if not answer["starts"]:
        if not any(one["stops_broker"] for one in left):
            yield f"it does not start after a rebuild: {answer['refusal']}"
        return
    end = rebuild["plan"]["value"]["log_end"]
    if answer["log"][1] != end:
        yield f"after a rebuild the log ends at {answer['log'][1]}, and should at {end}"
    named = {one["place"] for one in left}
    served = _places(answer["served"])
    for queue, places in _places(
        _value(claims, "commitlog DROPMALFORMED", {}).get("rows", {})
    ).items():
        in_queue = {*served.get(queue, {}).values()}
        lost = {at for at, place in places.items() if place not in in_queue and place < end}
        if queue and lost and queue not in named:
            yield f"{queue}: {_shown(lost)} are in the log and not served after a rebuild"


def what_was_appended_is_served_and_nothing_else_lost(
    claims: Claims, answer: Answer, after: After
) -> Iterator[str]:
    appended, later = claims["append"], after.get("appended")
    if later is None or "value" not in appended:
        return
    if not later["starts"]:
        if answer["starts"] or not any(one["stops_broker"] for one in _findings(claims)):
            yield f"it does not start after an append: {later['refusal']}"
        return
    served = _places(later["served"])
    rows = _places(appended["value"]["rows"])
    known = _places(_value(claims, "queue PERMISSIVE", {}).get("rows", {}))
    for queue in appended["queues"]:
        new = rows.get(queue, {}).items() - known.get(queue, {}).items()
        if not new:
            yield f"{queue}: what was appended is not read"
        gone = dict(new - served.get(queue, {}).items())
        if gone:
            yield f"{queue}: {_shown(gone)} were appended and are not served"
    if answer["starts"]:
        for queue, places in _places(answer["served"]).items():
            if lost := dict(places.items() - served.get(queue, {}).items()):
                yield f"{queue}: {_shown(lost)} were served before an append and are not after it"


def a_copy_has_what_is_read(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    copied, read = _value(claims, "copy"), _value(claims, "queue PERMISSIVE")
    if copied is None or read is None:
        return
    for queue, places in _places(read["rows"]).items():
        if lost := dict(places.items() - _places(copied["rows"]).get(queue, {}).items()):
            yield f"{queue}: {_shown(lost)} are not in a copy"


# Those that follow the store.


def followers_get_nothing_twice(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    for name, said in claims["follow"].items():
        for queue, rows in _followed(said["after"]).items():
            if twice := {row[0] for row in rows & _followed(said["before"]).get(queue, set())}:
                yield f"{name}: {queue}: {_shown(twice)} come twice"


def what_followers_do_not_get_is_named(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    whole = claims["follow"]["stream whole lenient"]["before"]
    for name, said in claims["follow"].items():
        before, after = _followed(said["before"]), _followed(said["after"])
        if "error" in said["before"] or "error" in said["after"]:
            if "lenient" in name and "error" in said["after"] and "error" not in said["before"]:
                yield f"{name}: {said['after']['error']}: {said['after']['text']}"
            continue
        texts = said["before"]["warnings"] + said["after"]["warnings"]
        for queue, rows in _followed(whole).items():
            lost = rows - before.get(queue, set()) - after.get(queue, set())
            is_named = any(queue in text or "dropped" in text for text in texts)
            if lost and ("strict" in name or not is_named):
                yield f"{name}: {queue}: {_shown({row[0] for row in lost})} do not come, without a word"


def both_ways_to_follow_say_the_same(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    for strictness in ("strict", "lenient"):
        tail, stream = (claims["follow"][f"{way} whole {strictness}"] for way in ("tail", "stream"))
        if "error" in tail["before"] or "error" in stream["before"]:
            continue
        if ("error" in tail["after"]) != ("error" in stream["after"]):
            failed = "tail" if "error" in tail["after"] else "stream"
            text = (tail if failed == "tail" else stream)["after"]["text"]
            yield f"{strictness}: only the {failed} fails: {text}"
        elif _followed(tail["after"]) != _followed(stream["after"]):
            yield f"{strictness}: the tail and the stream give other messages"


def _followed(said: dict[str, Any]) -> dict[str, set[tuple[int, ...]]]:
    rows = said.get("value", {}).get("rows", {})
    return {queue: {tuple(row) for row in of_queue} for queue, of_queue in rows.items()}


# How it is done.


def reading_changes_nothing(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    if claims["changed"]:
        yield f"reading changes {claims['changed'][:_SHOWN]}"


def errors_are_our_own(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    for name, said in _parts(claims):
        if not said.get("is_ours", True):
            yield f"{name}: {said['text']}"


def _parts(claims: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield everything that was asked, however deep it lies."""
    if isinstance(claims, dict):
        if "warnings" in claims:
            yield name, claims
        for key, value in claims.items():
            yield from _parts(value, f"{name} {key}".strip())


def memory_is_bounded(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    if claims["memory"] > MEGABYTES:
        yield f"reading takes {claims['memory']} MiB"


RULES: tuple[Rule, ...] = (
    what_is_valid_starts_and_is_served_whole,
    it_starts_as_foretold,
    the_log_ends_as_foretold,
    what_is_said_not_to_be_served_is_not,
    queue_offsets_are_given_again_as_foretold,
    it_loses_nothing_unsaid,
    reads_give_what_is_served,
    reads_give_nothing_else,
    views_say_what_it_has,
    look_ups_find_what_it_finds,
    remedies_do_what_they_promise,
    what_is_refused_changes_nothing,
    it_starts_after_a_rebuild_and_serves_what_the_plan_says,
    what_was_appended_is_served_and_nothing_else_lost,
    a_copy_has_what_is_read,
    followers_get_nothing_twice,
    what_followers_do_not_get_is_named,
    both_ways_to_follow_say_the_same,
    reading_changes_nothing,
    errors_are_our_own,
    memory_is_bounded,
)
