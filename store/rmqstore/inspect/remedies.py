"""Meanings of a check's findings and their remedies, by urgency.

A finding names its kind, or is of the kind of its part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from shlex import join, quote
from typing import Literal, NamedTuple, TypeAlias

from rmqstore.errors import (
    CorruptRecordError,
    Finding,
    OptionError,
    RmqStoreError,
    StoreLockedError,
    StoreStateError,
)
from rmqstore.inspect.changes import plan_of
from rmqstore.storage.broker.folders import find_dledger_logs
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths
from rmqstore.write.existing_store import require_no_old_broker

Severity: TypeAlias = Literal["high", "medium", "low"]


class CheckedStore(NamedTuple):
    """What remedies say of the store that was checked.

    Attributes:
        path: its path and the options that name parts which are not found by it, for a shell.
        source: the same, with its tiered storage.
        why_not_rebuilt: why its queues and index cannot be built again, "" if they can.
        before_rebuild: what to see to before they are built again, "" for nothing.
        rebuild_options: the options that the command for it needs, each after a space.
        is_cut_first: whether good records follow damage of the log, which is cut there before that.
    """

    path: str
    source: str
    why_not_rebuilt: str = ""
    before_rebuild: str = ""
    rebuild_options: str = ""
    is_cut_first: bool = False

    @classmethod
    def of(cls, paths: StorePaths, path: str, tiered: str | None = None) -> CheckedStore:
        """Return what remedies say of a store that commands name by ``path``."""
        words = [path]
        if paths.settings is not None:
            words += ["-c", str(LOCAL.full_path(Path(paths.settings.file)))]
        for option, folders, usual in (
            ("--commitlog", paths.commitlogs, (paths.root / "commitlog",)),
            ("--consumequeue", (paths.consumequeue,), (paths.root / "consumequeue",)),
            ("--index", (paths.index,), (paths.root / "index",)),
            ("--dledger-log", paths.dledger_logs, _found_dledger_logs(paths)),
        ):
            if folders == usual:
                continue
            for folder in folders:
                words += [option, str(paths.storage.full_path(folder))]
        named = join(words)
        source = named if tiered is None else f"{named} --tiered {quote(tiered)}"
        is_cut_first = False
        try:
            try:
                plan_of(paths, truncate=False, broker_stopped=True)
            except CorruptRecordError:
                plan_of(paths, truncate=True, broker_stopped=True)
                is_cut_first = True
        except StoreLockedError:
            return cls(named, source, before_rebuild=_STOP)
        except RmqStoreError as err:
            return cls(named, source, str(err))
        found = cls(named, source, is_cut_first=is_cut_first)
        try:
            require_no_old_broker(paths)
        except StoreStateError:
            return found._replace(before_rebuild=_NO_LOCK, rebuild_options=" --broker-stopped")
        return found


def _found_dledger_logs(paths: StorePaths) -> tuple[Path, ...]:
    """Return the folders of a DLedger log that need no name; none if there are several logs."""
    try:
        return find_dledger_logs(paths.root, (), None, paths.storage)
    except OptionError:
        return ()


class Remedy(NamedTuple):
    """The meaning of findings of one kind, and their remedy."""

    severity: Severity
    effect: str
    advice: str
    # has PATH where the store is named, SOURCE where its tiered storage is named as well
    command: str = ""
    # What follows the first command, if that is not all, and the command for it.
    then: str = ""
    last_command: str = ""

    def steps(self, checked: CheckedStore) -> list[tuple[str, str]]:
        """Return what to do, each step in words and as a command for a store; "" for none."""
        names = {"PATH": checked.path, "SOURCE": checked.source}
        steps = []
        for text, command in ((self.advice, self.command), (self.then, self.last_command)):
            typed = re.sub("PATH|SOURCE", lambda found: names[found[0]], command)
            is_rebuild = command.startswith("rmqstore rebuild")
            if is_rebuild and checked.why_not_rebuilt:
                steps.append((_NOT_REBUILT.format(checked.why_not_rebuilt), ""))
            elif command == _REBUILD and checked.is_cut_first:
                steps += _CUT_FIRST.steps(checked)
            elif is_rebuild:
                said = f"{checked.before_rebuild} {text}".strip()
                steps.append((said, typed + checked.rebuild_options))
            elif text:
                steps.append((text, typed))
        return steps

    def lines(self, checked: CheckedStore) -> list[str]:
        """Return the remedy in words, with the commands for a store to type."""
        steps = self.steps(checked)
        return [self.effect, *(f"{text} {command}".strip() for text, command in steps)]


_REBUILD = "rmqstore rebuild PATH"
_WOULD_LEAVE_OUT = "Building the queues again would mend this, and leave out messages: see above."
_NOT_REBUILT = (
    "rmqstore does not build this store again as it is: {}. A replica of the broker or a backup "
    "may have what is missing."
)
_STOP = "A broker or a writer has the store: stop it first."
_NO_LOCK = (
    "The store was not closed and has no lock file, and brokers before 4.2 make none: look first "
    "that no broker runs on it, which --broker-stopped affirms."
)
_IS_BUILT = (
    "Nothing brings their bytes back but a replica or a backup. Building queues and index again "
    "would change nothing."
)

_CUT_FIRST = Remedy(
    "high",
    "",
    "Nothing is built from a log in which good records follow damage. If there is no other copy, "
    "copy all messages out, these included:",
    "rmqstore export PATH messages.parquet --scan commitlog --all --ignore-log-end "
    "--mode DROPMALFORMED --ignore-data-loss",
    "Then this cuts the log at the damage, keeps a copy of what it cuts, and builds queues and "
    "index from what is left:",
    "rmqstore rebuild PATH --truncate",
)

# In the order in which they have to be dealt with: what is lost for good comes first.
_REMEDIES = {
    "deletes": Remedy(
        "high",
        "The newest units of a queue in tiered storage are gone. A broker that starts deletes all "
        "other segments of that queue then, with messages that nothing else has.",
        "Do not start the broker, and keep a copy of the tier. Copy the messages out:",
        "rmqstore export SOURCE messages.parquet --mode DROPMALFORMED --ignore-data-loss",
        "Get the newest segment of its CONSUME_QUEUE from a backup, put it in its place, and check "
        "again:",
        "rmqstore verify SOURCE",
    ),
    "unnoted": Remedy(
        "high",
        "The notes of a broker lack segments in tiered storage. It reads none of them, and may "
        "write on where they begin, so they are worth more than what it makes of them.",
        "Do not start the broker, and leave them in their place. Get tieredStoreMetadata.json from "
        "a backup that is as new as they are, put it in the place of both files, and check again:",
        "rmqstore verify SOURCE",
        "Without one, copy the messages out:",
        "rmqstore export SOURCE messages.parquet --mode DROPMALFORMED --ignore-data-loss",
    ),
    "lost": Remedy(
        "high",
        "Messages are gone from the log, and a broker that starts gives their queue offsets to "
        "other messages. Consumers that were beyond them miss those.",
        "Do not start the broker yet. Get the files of the log from a backup or from a replica of "
        "this broker, put them in their place, and check again:",
        "rmqstore verify PATH",
        "If there is no other copy, these messages are lost. This builds the queues from what is "
        "left, and the next messages get the queue offsets after that:",
        _REBUILD,
    ),
    "start": Remedy(
        "high",
        "A broker does not start on this store: a file has a wrong length or a wrong name, or is a "
        "folder.",
        "Move a folder away. Do not delete a file, which loses what it holds. Get it from a backup "
        "or from a replica of this broker, or give it back its name, and check again:",
        "rmqstore verify PATH",
        "If there is no other copy, move files away whose names are no offsets. This pads files of "
        "the log that are too short, cuts zeros from those that are too long, and builds the "
        "queues again, without extensions: move consumequeue_ext away after that. It says first "
        "what it will do:",
        "rmqstore rebuild PATH --dry-run",
    ),
    "foreign": Remedy(
        "high",
        "A broker does not start on this store: a file that is none of the store's lies among "
        "those of its log or of a queue.",
        "Move the file out of the store, and keep it until you know what it is. Building queues "
        "again leaves it there. Check again:",
        "rmqstore verify PATH",
    ),
    "database": Remedy(
        "high",
        "A RocksDB database with queues is damaged. A broker does not start, or, where neither "
        "CURRENT nor a log of writes (*.log) is left, begins an empty one. The messages are in the "
        "log of the store still.",
        "Get all files of the database from a backup that was made while the broker was stopped, "
        "put them in the place of these, and check again:",
        "rmqstore verify PATH",
        "Without a backup, copy all messages out, and then move all files of the database away, "
        "but no folder: a broker that starts fills a new one with what it reads of the log, which "
        "may be the newest files only.",
        "rmqstore export PATH messages.parquet --scan commitlog --all --mode DROPMALFORMED "
        "--ignore-data-loss",
    ),
    "type": Remedy(
        "high",
        "A broker from 5.0 on does not start on this store: its topics and the folders of their "
        "queues disagree about the type of queues.",
        "Get topics.json from a backup or from a replica of this broker, put it in its place, and "
        "check again:",
        "rmqstore verify PATH",
    ),
    "tables": Remedy(
        "high",
        "A broker does not start on this store: it loads a table that is damaged, empty or "
        "missing, and the backup of the table, the .bak file beside it, is damaged. A table in "
        "RocksDB has no backup.",
        "Get the table from a backup or from a replica of this broker, put it in the place of "
        "both files, or of all files of its database, and check again:",
        "rmqstore verify PATH",
        "If there is no other copy, move these files away: a broker that starts begins an empty "
        "table, and knows nothing of what was in this one. See before that what is left of "
        "topics, groups and offsets:",
        "rmqstore describe PATH",
    ),
    "epochfile": Remedy(
        "high",
        "A broker in controller mode does not start on this store: in the file of its epochs, "
        "something else stands in the place of a number.",
        "Move the file away, but keep it. The broker reads the .bak file beside it then, which has "
        "one epoch less; without one, it begins with no epochs. Check again:",
        "rmqstore verify PATH",
    ),
    "name": Remedy(
        "high",
        "A file has the name of another place, so a broker does not find what it holds.",
        "Do not start the broker yet. Give a file of the log the name that its first record says, "
        "and check again:",
        "rmqstore verify PATH",
        "Files of queues can be built again:",
        _REBUILD,
    ),
    "twins": Remedy(
        "high",
        "Two folders of the log have a file of one name with other bytes. A broker reads one of "
        "them, so what only the other one has is lost.",
        "Do not start the broker yet. Look at which file has all the records, move the other one "
        "away, and check again:",
        "rmqstore verify PATH",
    ),
    "end": Remedy(
        "high",
        "A broker that starts on this store ends the log there and loses these records.",
        "Before it starts, copy all messages out, these included:",
        _CUT_FIRST.command,
        "Then start the broker, or cut the log without it, which keeps a copy of what is cut:",
        _CUT_FIRST.last_command,
    ),
    "log": Remedy(
        "high",
        "Records of the log are damaged or missing, so their messages cannot be read.",
        "Nothing brings their bytes back but a replica or a backup. Without one, this builds "
        "queues and index from what is left, so that consumers get no zeros in their place:",
        _REBUILD,
    ),
    "part": Remedy(
        "medium",
        "A part of a record cannot be read, and its other parts can. A broker serves such records, "
        "and RocketMQ's client leaves out those whose body does not inflate.",
        "Building queues again does not change that. Reads give the other parts, with the reason "
        "beside them, in this mode:",
        "rmqstore dump PATH --all --mode PERMISSIVE --ignore-data-loss",
    ),
    "nowhere": Remedy(
        "medium",
        "Records name a topic or a queue id that no queue can have, as after damage. Consumers, "
        "and reads by queue, do not get these messages.",
        "Building queues again does not change that. Reads of the log give them:",
        "rmqstore export PATH messages.parquet --scan commitlog --all --mode DROPMALFORMED "
        "--ignore-data-loss",
    ),
    "emptied": Remedy(
        "high",
        "The files of a queue no longer keep its last queue offsets, and the log does not have "
        "those messages. A broker that starts gives out their queue offsets again, and consumers "
        "that were beyond them miss what comes there.",
        "Do not start the broker yet. Get the file from a backup or from a replica of this broker, "
        "put it in its place, and check again:",
        "rmqstore verify PATH",
    ),
    "zeros": Remedy(
        "high",
        "The last file of a queue holds nothing but zeros, as a loss of power leaves it, or a "
        "broker would begin such a file for a record that the queue has already.",
        "Do not start the broker yet. This builds the queues from the log:",
        _REBUILD,
    ),
    "fewer": Remedy(
        "medium",
        "The queue serves messages whose records name queue offsets of others, as old brokers and "
        "crashes leave them. A queue that is built from the log has no unit for them.",
        "Before the queues are built again, copy all messages out:",
        "rmqstore export PATH messages.parquet --all --mode DROPMALFORMED --ignore-data-loss",
    ),
    "gone": Remedy(
        "high",
        "Messages are gone from the log, and their queues still lead to where they were: a broker "
        "serves what lies there now, such as zeros, or passes over them.",
        "Nothing brings them back but a replica or a backup. Without one, this builds the queues "
        "from what is left:",
        _REBUILD,
    ),
    "kept": Remedy(
        "high",
        "All messages of a queue that the queue leads to are gone from the log. A broker serves "
        "what lies there now, such as zeros, or passes over it.",
        "Nothing brings them back but a replica or a backup. Building queues again leaves this one "
        "as it is, because only its files show its next queue offset.",
    ),
    "unbuilt": Remedy(
        "high",
        "The log has messages that their queues lack, and a broker that starts does not build "
        "them: consumers miss them for good.",
        "Do not start the broker yet. This builds the queues from the log, all of them:",
        _REBUILD,
    ),
    "tier": Remedy(
        "high",
        "Messages in tiered storage cannot be read. A broker starts all the same. Consumers pass "
        "over a hole in a COMMIT_LOG without an error, and stop for good before one in a "
        "CONSUME_QUEUE.",
        "Get the segment from a backup, put it in its place under its whole name, and check again:",
        "rmqstore verify SOURCE",
        "Without one they are lost, but for those that the local store still has. Set groups that "
        "stop there to the queue offset after them; this reads all others:",
        "rmqstore export SOURCE messages.parquet --mode DROPMALFORMED --ignore-data-loss",
    ),
    "timer": Remedy(
        "high",
        "Timed messages are not delivered, or the broker does not start, because of the files of "
        "its timer wheel. The messages are in the log still, and no others are affected.",
        "Do not start the broker yet. Move timerlog, timerwheel and config/timercheck out of the "
        "store, all three of them: a broker that starts then enters all timed messages of the log "
        "again. It delivers at once those that are past their time, so consumers get some of them "
        "a second time. A backup of the three, made while the broker was stopped, avoids that. "
        "Check again:",
        "rmqstore verify PATH",
    ),
    "delay": Remedy(
        "high",
        "Delayed messages wait, and delayOffset.json, which is of a later day than the log, says "
        "that they were delivered: a broker never delivers them.",
        "Do not start the broker yet. Get a delayOffset.json that is as old as the log, put it in "
        "the place of both files, and check again:",
        "rmqstore verify PATH",
        "Without one, move both files away: a broker that starts delivers all delayed messages of "
        "the log then, also those that were delivered before.",
    ),
    "unit": Remedy(
        "medium",
        "Consumers, and reads by queue, come upon wrong messages.",
        "A broker that starts does not mend this. This builds the queues from the log while no "
        "broker runs on the store:",
        _REBUILD,
    ),
    "tags": Remedy(
        "medium",
        "Consumers of all messages get the right ones. By the tags codes of units, or of an "
        "extension, a broker passes over messages for those that ask for tags, and delivers those "
        "of SCHEDULE_TOPIC_XXXX. Without an extension it passes over none, until it writes to a "
        "new one: these units then lead to those of other messages, and requests fail.",
        "Before a broker starts, this builds the queues from the log, without extensions:",
        _REBUILD,
    ),
    "queue": Remedy(
        "medium",
        "Consumers, and reads by queue, miss messages that the log has.",
        "A broker that starts after a crash mends this by itself. Without a broker, this builds "
        "the queues from the log:",
        _REBUILD,
    ),
    "config": Remedy(
        "medium",
        "A table of the broker is damaged or empty. What depends on it comes from its backup, or "
        "is not known. Messages are not affected.",
        "A broker that starts reads the backup, the .bak file beside the table, and writes the "
        "table again. If there is no backup, or an empty one, it begins an empty table: see before "
        "it starts what is left of topics, groups and offsets:",
        "rmqstore describe PATH",
    ),
    "epochs": Remedy(
        "medium",
        "Epochs of controller mode start after the end of the log: the log has lost its end, or "
        "their file is of another store.",
        "Before a broker starts on this store, compare them with those of its replicas:",
        "rmqstore view epochs PATH",
    ),
    "check": Remedy(
        "medium",
        "The check ended early, so there may be more than is listed.",
        "Repair the named files, and check again:",
        "rmqstore verify PATH",
    ),
    "named": Remedy(
        "low",
        "Records name queue offsets that cannot be theirs, as after a crash in which a broker gave "
        "some out twice. Consumers get what the queue leads to, and nothing else.",
        "Building the queues again does not change that. Reads by log have all of these messages.",
    ),
    "stray": Remedy(
        "low",
        "The notes of the broker do not have a file in tiered storage, or its last bytes, so it "
        "does not read them.",
        "If a segment is missing, this may be it: give it back its whole name, the digits before "
        "the offset included. Otherwise move it away, and keep it if no other copy has its bytes.",
    ),
    "tierkeys": Remedy(
        "low",
        "Queries by key at the broker miss messages in tiered storage. Nothing else is affected, "
        "and look-ups of this package do not use that index.",
        "Get the segment from a backup, put it in its place, and check again:",
        "rmqstore verify SOURCE",
    ),
    "twin": Remedy(
        "low",
        "Two folders of the log have the same file.",
        "A broker reads one of them. Move the other one away.",
    ),
    "keys": Remedy(
        "low",
        "A broker that starts deletes index files that its checkpoint does not cover, and does not "
        "build all of their keys again. No message is affected otherwise.",
        "Before it starts, this builds the index from the log:",
        _REBUILD,
    ),
    "index": Remedy(
        "low",
        "Queries by key miss messages. No message is affected otherwise.",
        "This builds the index from the log while no broker runs on the store:",
        _REBUILD,
    ),
}
_KINDS = tuple(_REMEDIES)


def kind_of(finding: Finding) -> str:
    """Return the kind of a finding."""
    return finding.kind or finding.part


def _builds_again(remedy: Remedy) -> bool:
    return _REBUILD in (remedy.command, remedy.last_command)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order in which they have to be dealt with.

    What a rebuild would leave out is no matter where none is advised.
    """
    found = sorted(findings, key=lambda finding: _KINDS.index(kind_of(finding)))
    if any(_builds_again(_REMEDIES[kind_of(finding)]) for finding in found):
        return found
    return [finding for finding in found if kind_of(finding) != "fewer"]


def by_kind(findings: Sequence[Finding]) -> list[tuple[str, Remedy, list[Finding]]]:
    """Return the findings about one store with their remedies, kind by kind, in that order."""
    kinds = {kind: [*group] for kind, group in groupby(in_order(findings), kind_of)}
    is_built = not any(_builds_again(_REMEDIES[kind]) for kind in kinds if kind != "log")
    found = []
    for kind, of_kind in kinds.items():
        remedy = _REMEDIES[kind]
        if kind == "log" and is_built:
            remedy = remedy._replace(advice=_IS_BUILT, command="")
        if "fewer" in kinds and remedy.command == _REBUILD:
            remedy = remedy._replace(advice=_WOULD_LEAVE_OUT, command="")
        elif "fewer" in kinds and remedy.last_command == _REBUILD:
            remedy = remedy._replace(then=_WOULD_LEAVE_OUT, last_command="")
        found.append((kind, remedy, of_kind))
    return found
