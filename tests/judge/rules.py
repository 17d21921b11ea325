"""What has to be true of our claims about a store, given what the original does with it.

A rule yields, in plain words, each claim that is not. ``after`` has the original's answers about
the copies that were ``rebuilt`` and ``appended`` to; one that is not there is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from judge.claims import MODES, SCANS, Claims, Rows, Said
from judge.original import Answer

After = Mapping[str, Answer]
Rule = Callable[[Claims, Answer, After], Iterator[str]]
Places = dict[int, int]  # of a queue, the physical offset at each queue offset

MEGABYTES = 300
_SHOWN = 4  # offsets that a text names
_GAP = r"{}, byte \d+: a file is missing or cut: queue offset (\d+)"  # of a folder's queue
# Kinds of findings after which a queue, or the whole store, gives consumers something else.
_OF_QUEUE = ("unit", "zeros", "named", "fewer", "gone", "lost", "kept", "unbuilt", "nowhere")
_OF_STORE = ("name", "twins", "foreign", "start", "database", "check", "type", "emptied")
# Kinds that a rebuild is advised for, and so mends.
_REBUILT = {"lost", "end", "unbuilt", "unit", "zeros", "tags", "queue", "keys", "index"}
# Errors that say of a store, or of a part of it, that it cannot be read in any mode.
_UNREADABLE = (
    "NotAStoreError", "NotPermittedError", "UnreadableFileError", "UnsupportedFeatureError",
    "CorruptDatabaseError", "CorruptConfigError",
)  # fmt: skip


# Ways in which we differ on purpose, each with its reason and the page that says so.


def is_taken_from_the_log(said: Said) -> bool:
    """A read gives messages whose units a crash took, which a broker may not build again.

    They are in the log, and a warning says how many they are (docs/crashed.md).
    """
    return any("taken from the log" in text for text in said["warnings"])


def is_passed_over_with_a_hole(claims: Claims, answer: Answer, queue: str, at: int) -> bool:
    """A consumer that comes to a hole in a queue goes on with the next file.

    One that asks for a message behind the hole gets it, as reads do (docs/crashed.md).
    """
    served = _places(answer["served"]).get(queue, {})
    before = max((offset for offset in served if offset < at), default=-1)
    given = _rows(claims, "queue PERMISSIVE").get(queue, {})
    is_in_queue = at < answer["queues"].get(queue, [0, 0])[1]
    return is_in_queue and any(offset not in given for offset in range(before + 1, at))


def is_known_to_nobody(claims: Claims, queue: str, at: int) -> bool:
    """A stream does not miss what it has not read, once no queue shows that it was there.

    Nothing in its offset does either (docs/streaming.md).
    """
    said = claims["queue PERMISSIVE"].get("value", {"rows": {}, "damaged": {}})
    return not any(at in _offsets(said[kind].get(queue, ())) for kind in ("rows", "damaged"))


def is_another_store(said: Said) -> bool:
    """A store whose log begins with another record is read from its first message on.

    That is named as data loss (docs/streaming.md).
    """
    return any("another store has taken the place" in text for text in said["warnings"])


def without_earlier_topics(rows: Rows) -> Rows:
    """The log has records of a topic that was deleted, which a topic of its name does not have.

    Reads by log give them, as they are not deleted yet (docs/decisions/030).
    """
    found: Rows = {}
    for queue, of_queue in rows.items():
        begins = [number for number, row in enumerate(of_queue) if row[0] == 0]
        found[queue] = of_queue[begins[-1] if begins else 0 :]
    return found


def without_others(claims: Claims, rows: Rows) -> Rows:
    """A broker serves what a unit leads to: another queue's record, or another one of the queue.

    Reads give or name the queue's own messages, each at its queue offset, and none of a negative
    queue id, for which no consumer asks (docs/crashed.md).
    """
    own = _followed(claims["follow"]["stream whole lenient"]["before"])
    in_log = claims["commitlog PERMISSIVE"].get("value", {}).get("rows", {})
    if not (own or in_log):
        return rows
    unread = in_log.keys() - own.keys()  # a stream may not have read it
    for queue in (one for one in unread if not re.search(r"--\d+$", one)):
        own[queue] = {tuple(row) for row in in_log[queue]}
    places = {queue: {row[:2] for row in of_queue} for queue, of_queue in own.items()}
    return {
        queue: [row for row in of_queue if (row[0], row[1]) in places.get(queue, ())]
        for queue, of_queue in rows.items()
    }


def without_the_lock(changed: Collection[str]) -> list[str]:
    """A writer that refuses a store without a lock leaves an empty one.

    Others may wait for it, and would hold nothing if it were removed (docs/writing.md).
    """
    return [path for path in changed if path != "lock"]


DIFFERENCES = (
    is_taken_from_the_log, is_passed_over_with_a_hole, is_known_to_nobody, is_another_store,
    without_earlier_topics, without_others, without_the_lock,
)  # fmt: skip


# What claims and answers say.


def _places(rows: Rows) -> dict[str, Places]:
    """Return where each message is; of those of an inner batch where the first one is."""
    found: dict[str, Places] = {}
    for queue, of_queue in rows.items():
        places = found.setdefault(queue, {})
        before = None
        for queue_offset, physical_offset, *_ in of_queue:
            if physical_offset != before:
                places[queue_offset] = before = physical_offset
    return found


def _rows(claims: Claims, part: str) -> dict[str, Places]:
    rows = claims[part].get("value", {}).get("rows", {})
    return _places(without_earlier_topics(rows) if "commitlog" in part else rows)


def _findings(claims: Claims) -> list[dict[str, Any]]:
    return list(claims["verify"].get("value", []))


def _stat(claims: Claims) -> list[dict[str, Any]]:
    return list(claims["stat"].get("value", []))


def _unserved(claims: Claims) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for one in _findings(claims):
        for run in one["unserved"]:
            found.setdefault(one["place"], set()).update(range(*run))
    return found


def _may_not_start(said: Said) -> bool:
    """Return whether a warning says that a broker does not start, if no more files belong to it."""
    return any("does not start" in text for text in said["warnings"])


def _is_not_foretold(claims: Claims) -> bool:
    return any("is not foretold" in text for text in claims["verify"]["warnings"])


def _place(finding: Mapping[str, Any]) -> str:
    """Return the place of a finding; a topic that cannot name a folder is quoted there."""
    return str(finding["place"]).replace("'", "")


def _is_named(claims: Claims, queue: str) -> bool:
    """Return whether a finding says that consumers of a queue get something else."""
    folder = _folder(queue)
    if _is_not_foretold(claims):
        return True
    return any(
        (one["kind"] in _OF_QUEUE and _place(one) == queue and not one["unserved"])
        # requests may fail, as the remedy says
        or (one["kind"] == "tags" and "extension" in one["text"] and _place(one) == queue)
        or ("or miss more" in one["text"] and _place(one) == queue)
        or (one["kind"] in _OF_STORE and (one["part"] != "queue" or folder in one["place"]))
        for one in _findings(claims)
    )


def _folder(queue: str) -> str:
    return "/" + "/".join(queue.rsplit("-", 1))


def _text(offsets: Collection[int]) -> str:
    found = sorted(offsets)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(map(str, found[:_SHOWN])) + more


# What verify says.


def what_is_valid_is_served_whole(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    if claims["verify"].get("value") != [] or not answer["starts"]:
        return
    served = _places(answer["served"])
    for queue, places in _rows(claims, "queue PERMISSIVE").items():
        gone = dict(places.items() - served.get(queue, {}).items())
        gone = {at for at in gone if not is_passed_over_with_a_hole(claims, answer, queue, at)}
        if gone and not _is_named(claims, queue):
            yield f"{queue}: verify finds nothing, and {_text(gone)} are not served"


def it_starts_as_foretold(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    found = _findings(claims)
    stops = [one for one in found if one["stops_broker"]]
    if stops and answer["starts"]:
        yield f"it starts although {stops[0]['place']}: {stops[0]['text']}"
    is_open = (
        any(one["kind"] == "database" or "may not start" in one["text"] for one in found)
        or "error" in claims["verify"]
    )
    is_open |= _may_not_start(claims["verify"]) or _is_not_foretold(claims)
    is_late = answer.get("refusal") == "hangs"  # perhaps only slow, on a machine with much to do
    if not (stops or is_open or answer["starts"] or is_late):
        yield f"nothing says that it does not start: {answer['refusal']}"


def the_log_ends_as_foretold(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    end = claims["log end"].get("value")
    if answer["starts"] and end is not None and end != answer["log"][1]:
        yield f"its log ends at {answer['log'][1]}, and should at {end}"


def what_is_said_not_to_be_served_is_not(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    ever = _followed(claims["follow"]["stream whole lenient"]["before"])
    for queue, offsets in _unserved(claims).items():
        # Bytes of another record, which the original serves in the place of one, are none of it.
        served = answer.get("served", {}).get(queue, ())
        begin, end = answer["queues"].get(queue, (0, 0)) if served else (0, 0)
        is_dense = len(served) == end - begin  # else no row shows at which queue offset it came
        rows = {tuple(row) for at, row in enumerate(served, begin) if row[0] == at or not is_dense}
        if told := {row[0] for row in rows & ever.get(queue, set())} & offsets:
            yield f"{queue}: {_text(told)} are served, and verify says that they are not"


def offsets_are_given_again_as_foretold(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    found = _findings(claims)
    foretold = {one["place"]: one["next_offset"] for one in found if one["next_offset"] is not None}
    ends = {f"{row['topic']}-{row['queueId']}": row["maxOffset"] or 0 for row in _stat(claims)}
    for queue, given in answer.get("next", {}).items():
        end = ends.get(queue, 0)
        if given is None:
            continue
        if foretold.get(queue, given) != given:
            yield f"{queue}: the next message gets {given}, and should get {foretold[queue]}"
        elif queue not in foretold and given < end and not _is_named(claims, queue):
            yield f"{queue}: the next message gets {given}, which nothing says; there are {end}"


def it_loses_nothing_unsaid(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    """What the log and the queues still have is served, or it is said that it is not."""
    if not answer["starts"] or "error" in claims["verify"]:
        return
    unserved, served = _unserved(claims), _places(answer["served"])
    for part in ("queue PERMISSIVE", "commitlog PERMISSIVE"):
        for queue, places in _rows(claims, part).items():
            known = {*served.get(queue, {}).values()}
            lost = {at for at, place in places.items() if place not in known}
            lost -= unserved.get(queue, set())
            if not queue or _is_named(claims, queue):
                continue
            if lost := {
                at for at in lost if not is_passed_over_with_a_hole(claims, answer, queue, at)
            }:
                yield f"{queue}: {_text(lost)} of {part} are not served, which nothing says"


# What reads give.


def reads_give_what_is_served(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    """FAILFAST gives it or fails, PERMISSIVE gives or names it, DROPMALFORMED counts it."""
    unserved = _unserved(claims)
    for part in (f"{scan} {mode}" for scan in SCANS for mode in MODES):
        said = claims[part]
        if "error" in said:
            if "FAILFAST" not in part and said["error"] not in _UNREADABLE:
                yield f"{part}: {said['error']}: {said['text']}"
            continue
        rows, damaged = said["value"]["rows"], said["value"]["damaged"]
        in_log = {row[1] for of_queue in rows.values() for row in of_queue}
        is_named = any("dropped" in text or "data loss" in text for text in said["warnings"])
        warned = "\n".join(said["warnings"])
        is_named |= "" in damaged or ("commitlog" in part and bool(damaged))
        for queue, served in without_others(claims, answer.get("served", {})).items():
            missing = _missing(queue, served, said["value"], unserved.get(queue, set()))
            if "commitlog" in part:
                missing = {at for at, place, _ in served if place not in in_log}
            if gap := re.search(_GAP.format(re.escape(_folder(queue))), warned):
                missing = {at for at in missing if at < int(gap[1])}
            if missing and not is_named:
                yield f"{part}: {queue}: {_text(missing)} are served and not given"


def _missing(
    queue: str, served: Collection[list[Any]], value: Mapping[str, Rows], moved: set[int]
) -> set[int]:
    """Return the queue offsets of what is served and neither given nor named.

    Where other messages move to, as is foretold, they are given at their own queue offsets.
    """
    rows = {row[0]: row for row in value["rows"].get(queue, ())}
    crcs = {(row[1], row[2]) for row in rows.values()}
    named = _offsets(value["damaged"].get(queue, ()))
    missing = {row[0] for row in served if row[0] in moved and (row[1], row[2]) not in crcs}
    for at, _, crc in served:
        if at not in moved and (at not in rows or rows[at][2] not in (crc, None)):
            missing.add(at)
    return missing - named


def _offsets(rows: Collection[Sequence[Any]]) -> set[int]:
    return {row[0] for row in rows}


def reads_give_nothing_else(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    """What is not served is given with a word: a finding or a warning."""
    if not answer["starts"]:
        return
    unserved, served = _unserved(claims), _places(answer["served"])
    for part in (f"queue {mode}" for mode in MODES):
        for queue, places in _rows(claims, part).items():
            other = dict(places.items() - served.get(queue, {}).items()).keys()
            other = {
                at for at in other if not is_passed_over_with_a_hole(claims, answer, queue, at)
            }
            other -= unserved.get(queue, set())
            if other and not (_is_named(claims, queue) or is_taken_from_the_log(claims[part])):
                yield f"{part}: {queue}: {_text(other)} are given and not served"


def reads_give_each_message_once_and_in_order(
    claims: Claims, _: Answer, __: After
) -> Iterator[str]:
    """A read by queue by queue offset, one by log by physical offset.

    Those of a file of a queue in the place of another one are in the order of the log.
    """
    are_moved = any("at another queue offset" in text for text in claims["verify"]["warnings"])
    for scan in SCANS:
        for mode in MODES:
            part = f"{scan} {mode}"
            for queue, rows in claims[part].get("value", {}).get("rows", {}).items():
                order = [(row[0],) if scan == "queue" else (row[1], row[0]) for row in rows]
                wrong = [at for at, (one, two) in enumerate(pairwise(order)) if one >= two]
                if wrong and not (scan == "queue" and are_moved and _is_named(claims, queue)):
                    yield f"{part}: {queue}: {order[wrong[0]]} before {order[wrong[0] + 1]}"


def views_say_what_it_has(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    if not answer["starts"]:
        return
    told = (one for one in _findings(claims) if one["unserved"] or one["next_offset"] is not None)
    foretold = {one["place"] for one in told}
    for row in _stat(claims):
        queue = f"{row['topic']}-{row['queueId']}"
        known, end = answer["queues"].get(queue), row["maxOffset"]
        is_said = queue in foretold or row["reason"] is not None or _is_named(claims, queue)
        is_said = is_said or not known or is_taken_from_the_log(claims["queue PERMISSIVE"])
        if not is_said and known[1] != end:
            yield f"stat: {queue} ends at {end}, and it has {known}"
    end = claims["describe"].get("value", {}).get("maxOffset")
    if end is not None and end != answer["log"][1] and claims["verify"].get("value") == []:
        yield f"describe: the log ends at {end}, and it has {answer['log']}"
    groups = claims["groups"].get("value")
    if groups is not None and answer["groups"] not in (groups, {}):
        other = sorted(dict(groups.items() ^ answer["groups"].items()))
        yield f"groups: the offsets of {', '.join(other[:_SHOWN])} differ"


def look_ups_find_what_it_finds(claims: Claims, answer: Answer, _: After) -> Iterator[str]:
    for key, known in answer.get("keys", {}).items():
        asked = claims["keys"].get(key, {})
        if "value" in asked and (missing := {*known} - {*asked["value"]}):
            yield f"{key}: {_text(missing)} are not found"


# What is done with copies.


def remedies_do_what_they_promise(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    rows = claims["commitlog DROPMALFORMED"].get("value", {}).get("rows", {})
    for command, done in claims["remedies"].items():
        name = f"{command} ({done['kind']})"
        if "error" in done:
            yield f"{name}: {done['error']}: {done['text']}"
            continue
        if done["value"]["code"] not in (0, 1) or "error:" in done["value"]["stderr"]:
            yield f"{name}: ends with {done['value']['code']}: {done['value']['stderr'][-300:]}"
        elif " rebuild " in command and "--dry-run" not in command:
            left = {one["kind"] for one in done["verify"].get("value", [])} & _REBUILT
            if left or "error" in done["verify"]:
                yield f"{name}: leaves {sorted(left)} {done['verify'].get('text', '')}"
        elif done["changed"]:
            yield f"{name}: changes {done['changed'][:_SHOWN]}"
        if "--scan commitlog" in command and done.get("rows", 0) < sum(map(len, rows.values())):
            yield f"{name}: exports {done.get('rows')} of {sum(map(len, rows.values()))}"


def what_is_refused_changes_nothing(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    """Rows for a queue are refused after the store was opened and so repaired."""
    for name in ("rebuild", "append"):
        if name == "append" and claims[name].get("error") == "CorruptQueueError":
            continue
        changed = without_the_lock(claims[name]["changed"])
        if "error" in claims[name] and changed:
            text = f"{claims[name]['text']}: {changed[:_SHOWN]}"
            yield f"{name} is refused and changes files: {text}"


def a_rebuild_is_done_as_planned(claims: Claims, _: Answer, after: After) -> Iterator[str]:
    """It is refused as planned; else it starts then, and serves what the log has."""
    done, answer = claims["rebuild"], after.get("rebuilt")
    plan = claims["plan to truncate" if done.get("truncates") else "plan"]
    if ("error" in plan) != ("error" in done):
        yield f"of plan and rebuild one is refused: {plan.get('text') or done.get('text')}"
        return
    if answer is None or "error" in done:
        return
    left = done["verify"].get("value", [])
    if not answer["starts"]:
        if not (any(one["stops_broker"] for one in left) or _may_not_start(done["verify"])):
            yield f"it does not start after a rebuild: {answer['refusal']}"
        return
    end = plan["value"]["log_end"]
    if answer["log"][1] != end:
        yield f"after a rebuild the log ends at {answer['log'][1]}, and should at {end}"
    named, served = {_place(one) for one in left}, _places(answer["served"])
    for queue, places in _rows(claims, "commitlog DROPMALFORMED").items():
        known = {*served.get(queue, {}).values()}
        lost = {at for at, place in places.items() if place not in known and place < end}
        lost = {at for at in lost if not is_passed_over_with_a_hole(claims, answer, queue, at)}
        if queue and lost and queue not in named:
            yield f"{queue}: {_text(lost)} of the log are not served after a rebuild"


def _appended(claims: Claims) -> dict[str, Places]:
    """Return what a read of each queue gives after an append and did not give before it."""
    given, known = _rows(claims, "append"), _rows(claims, "queue PERMISSIVE")
    return {
        queue: dict(given.get(queue, {}).items() - known.get(queue, {}).items())
        for queue in claims["append"]["queues"]
    }


def what_is_appended_is_read(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    if "error" not in claims["append"]:
        for queue, new in _appended(claims).items():
            if not new:
                yield f"{queue}: what was appended is not read"


def what_is_appended_is_served(claims: Claims, answer: Answer, after: After) -> Iterator[str]:
    """And nothing is lost by an append that was served before."""
    appended, later = claims["append"], after.get("appended")
    if later is None or "error" in appended:
        return
    if not later["starts"]:
        if answer["starts"]:
            yield f"it does not start after an append: {later['refusal']}"
        return
    in_log = claims["commitlog PERMISSIVE"].get("value", {"rows": {}})["rows"]
    newest = without_earlier_topics(in_log)
    for queue, new in _appended(claims).items():
        given = {(row[0], row[1]) for row in later["served"].get(queue, ())}
        gone = {at for at, place in new.items() if (at, place) not in given}
        # A tier has records at places of its own.
        gone -= {at for at, place in given if place < later["log"][0]}
        if queue in answer.get("stuck", {}) and queue in later["stuck"]:
            continue  # consumers do not get past an earlier message, as before
        if gone := {at for at in gone if not is_passed_over_with_a_hole(claims, later, queue, at)}:
            yield f"{queue}: {_text(gone)} were appended and are not served"
    read = claims["queue PERMISSIVE"].get("value", {})  # before the append
    for queue, places in _places(without_others(claims, answer.get("served", {}))).items():
        known_places = {row[1] for row in later["served"].get(queue, ())}
        known_places |= {row[1] for row in in_log.get(queue, ())}.difference(
            row[1] for row in newest.get(queue, ())
        )
        lost = {at for at, place in places.items() if place not in known_places}
        lost -= _offsets(read.get("damaged", {}).get(queue, ()))
        if lost := {at for at in lost if not is_passed_over_with_a_hole(claims, later, queue, at)}:
            yield f"{queue}: {_text(lost)} were served before an append and are not after it"


def a_copy_has_what_is_read(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    """A queue of which something is found is perhaps built again in a copy, from the log.

    It has no links, which it names.
    """
    copy = claims["copy"]
    if "value" in copy and not any("not copied" in text for text in copy["warnings"]):
        copied, in_log = _rows(claims, "copy"), _rows(claims, "commitlog PERMISSIVE")
        named = {_place(one) for one in _findings(claims)}
        for queue, places in _rows(claims, "queue PERMISSIVE").items():
            lost = dict(places.items() - copied.get(queue, {}).items())
            if queue in named or _is_named(claims, queue):
                gone = {*in_log.get(queue, {}).values()} - {*copied.get(queue, {}).values()}
                # or it has another record of that queue offset, which a kill leaves twice
                gone -= {place for at, place in lost.items() if at in copied.get(queue, {})}
                lost = {at: place for at, place in lost.items() if place in gone}
            damaged = _offsets(copy["value"]["damaged"].get(queue, ()))
            lost = {at: place for at, place in lost.items() if at not in damaged}
            if lost:
                yield f"{queue}: {_text(lost)} are not in a copy"


# Those that follow the store.


def _followed(said: Said) -> dict[str, set[tuple[int, ...]]]:
    rows = said.get("value", {}).get("rows", {})
    return {queue: {tuple(row) for row in of_queue} for queue, of_queue in rows.items()}


def followers_get_nothing_twice(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    for name, said in claims["follow"].items():
        before = _followed(said["before"])
        if is_another_store(said["after"]):
            continue
        for queue, rows in _followed(said["after"]).items():
            if twice := {row[0] for row in rows & before.get(queue, set())}:
                yield f"{name}: {queue}: {_text(twice)} come twice"


def what_followers_do_not_get_is_named(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    """What is delivered, and what is named as lost, is together what ever was there."""
    ever = _followed(claims["follow"]["stream whole lenient"]["before"])
    for name, said in claims["follow"].items():
        before, after = said["before"], said["after"]
        if "error" in before:
            continue
        if "error" in after:
            if "lenient" in name and after["error"] not in _UNREADABLE:
                yield f"{name}: {after['error']}: {after['text']}"
            continue
        texts = [*before["warnings"], *after["warnings"]]
        delivered = (_followed(before), _followed(after))
        for queue, rows in ever.items():
            lost = _offsets(rows) - {row[0] for some in delivered for row in some.get(queue, ())}
            lost = {at for at in lost if not is_known_to_nobody(claims, queue, at)}
            words = (queue, "/".join(queue.rsplit("-", 1)), "dropped")
            is_named = any(word in text for text in texts for word in words)
            if lost and not (is_named and "lenient" in name):
                yield f"{name}: {queue}: {_text(lost)} do not come, without a word"


def both_ways_to_follow_say_the_same(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    """Those that go on do; one that begins again does not know what lay where bytes are damaged."""
    for strictness in ("strict", "lenient"):
        tail, stream = (
            claims["follow"][f"{way} {strictness}"] for way in ("tail whole", "stream on")
        )
        if "error" in tail["before"] or "error" in stream["before"]:
            continue
        if ("error" in tail["after"]) != ("error" in stream["after"]):
            failed, one = ("tail", tail) if "error" in tail["after"] else ("stream", stream)
            yield f"{strictness}: only the {failed} fails: {one['after']['text']}"
        elif _followed(tail["after"]) != _followed(stream["after"]):
            yield f"{strictness}: the tail and the stream give other messages"


# How it is done.


def reading_changes_nothing(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    if claims["changed"]:
        yield f"reading changes {claims['changed'][:_SHOWN]}"


def errors_are_our_own(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    """No error of another library comes out, and nothing hangs."""
    yield from (f"{name}: {said['text']}" for name, said in _parts(claims) if not said["is_ours"])


def _parts(claims: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, Said]]:
    """Yield the parts with an error, however deep they lie."""
    if "is_ours" in claims:
        yield name, dict(claims)
    for key, value in claims.items():
        if isinstance(value, dict):
            yield from _parts(value, f"{name} {key}".strip())


def memory_is_bounded(claims: Claims, _: Answer, __: After) -> Iterator[str]:
    if claims["memory"] > MEGABYTES:
        yield f"reading takes {claims['memory']} MiB"


RULES: tuple[Rule, ...] = (
    what_is_valid_is_served_whole, it_starts_as_foretold, the_log_ends_as_foretold,
    what_is_said_not_to_be_served_is_not, offsets_are_given_again_as_foretold,
    it_loses_nothing_unsaid, reads_give_what_is_served, reads_give_nothing_else,
    reads_give_each_message_once_and_in_order, views_say_what_it_has,
    look_ups_find_what_it_finds, remedies_do_what_they_promise,
    what_is_refused_changes_nothing, a_rebuild_is_done_as_planned, what_is_appended_is_read,
    what_is_appended_is_served, a_copy_has_what_is_read, followers_get_nothing_twice,
    what_followers_do_not_get_is_named, both_ways_to_follow_say_the_same, reading_changes_nothing,
    errors_are_our_own, memory_is_bounded,
)  # fmt: skip
