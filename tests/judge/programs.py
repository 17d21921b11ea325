"""Stores that the real RocketMQ 5.3.3 writes by a program, which is a line of text.

``7;log=16384;units=20;items=80;put=A,3,40;flush;put=B,1,20;kill=5`` is one: a seed of what messages
hold, sizes of files, and what befalls the store, step by step. The broker's clock is the program's,
so that a program gives the same bytes each time.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from interop.lost_pages import Durable, cut_files
from interop.rocketmq import RealStore, RocketMQ, resolve_jars, store_sizes
from judge.jvm import shut_down

JARS = Path(__file__).parents[2] / ".rocketmq"
TOPICS = ("A", "B", "C")
GROUPS = ("g1", "g2")
_BEGIN_MS = 1_700_000_000_000
_FIRST_INDEX = 20231114_221320_000  # the name of an index file is a time
_SLOTS = 20
_LAST_MESSAGES = ("put", "batch", "delay", "half", "lmq")  # steps whose last number is a count
_STEPS = {
    "put": 10, "batch": 2, "delay": 2, "half": 2, "clock": 4, "flush": 4, "expire": 2, "again": 1,
    "backup": 3, "restart": 2, "kill": 1,
}  # fmt: skip
_HALF, _OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_SCHEDULE = "SCHEDULE_TOPIC_XXXX"
_CLOCK = """public class Clock extends org.apache.rocketmq.common.SystemClock {
    private volatile long time;
    public void set(long time) { this.time = time; }
    public long now() { return time; }
}"""


def draw(dice: random.Random) -> str:
    """Return a program of some ten steps, half of which end with a kill."""
    kind = dice.choices((None, "lmq", "ext"), (75, 15, 10))[0]
    weights = _STEPS | ({"lmq": 5} if kind == "lmq" else {})
    drawn = dice.choices(list(weights), list(weights.values()), k=dice.randint(2, 8))
    steps = [
        str(dice.randrange(1000)),
        f"log={dice.choice((16384, 16384, 32768, 65536))}",
        f"units={dice.choice((10, 20, 20, 50))}",
        f"items={dice.choice((40, 160))}",
        *([f"with={kind}"] if kind else []),
        *(_drawn(step, dice) for step in ("put", *drawn)),
        *([_drawn("kill", dice)] if dice.random() < 0.45 else []),
    ]
    return ";".join(steps)


def _drawn(kind: str, dice: random.Random) -> str:
    """Return a step, and beside it what makes that it changes something."""
    topic, small = dice.choice(TOPICS), dice.randint(1, 10)
    put = f"put={dice.choice(TOPICS)},{dice.randint(1, 4)},{dice.choice((5, 20, 40, 80))}"
    spelled = {
        "put": put, "batch": f"batch={topic},{small}", "delay": f"delay={small}",
        "half": f"half={small}", "lmq": f"lmq={2 * small}", "backup": f"backup;{put}",
        "clock": f"clock={dice.choice((1, 5, 60, 86400))}",
        "expire": f"expire={dice.randint(1, 3)}",
        "again": f"again={topic};put={topic},2,{small}",
        "kill": f"flush;{put};kill={dice.randrange(1000)}",
    }  # fmt: skip
    return spelled.get(kind, kind)


def smaller(program: str) -> Iterator[str]:
    """Yield programs of one step less, and with half of the messages of a step."""
    seed, *steps = program.split(";")
    for number, step in enumerate(steps):
        rest = steps[:number], steps[number + 1 :]
        name, _, arguments = step.partition("=")
        if name not in ("log", "units", "items"):
            yield ";".join([seed, *rest[0], *rest[1]])
        if name in _LAST_MESSAGES:
            *others, count = arguments.split(",")
            if int(count) > 1:
                half = ",".join([*others, str(int(count) // 2)])
                yield ";".join([seed, *rest[0], f"{name}={half}", *rest[1]])


def settings(program: str) -> dict[str, Any]:
    """Return the settings of the broker that runs a program."""
    steps = dict(step.partition("=")[::2] for step in program.split(";"))
    others: dict[str, Any] = {}
    if steps.get("with") == "lmq":
        others |= {"enableLmq": True, "enableMultiDispatch": True}
    if steps.get("with") == "ext":
        others |= {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 2048}
    units, items = int(steps["units"]), int(steps["items"])
    return store_sizes(int(steps["log"]), 20 * units, _SLOTS, items, **others)


class Writer:
    """The real RocketMQ with a clock of ours, which is started when a program is to run."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.lock = Lock()  # of the clock

    @cached_property
    def real(self) -> RocketMQ:
        return RocketMQ("5.3.3", resolve_jars("5.3.3", JARS), self._home)

    @cached_property
    def clock(self) -> Any:
        return _new_clock(self.real)

    def close(self) -> None:
        if "real" in vars(self):
            self.real.close()


def written(program: str, folder: Path, writer: Writer | None) -> Path:
    """Return the store of a program, which is written once; beside it lies that of yesterday."""
    root = folder / hashlib.sha256(program.encode()).hexdigest()[:16]
    if not root.exists():
        if writer is None:
            raise FileNotFoundError(f"the store of {program} is not written yet")
        with new_folder(folder) as new, writer.lock, ThreadPoolExecutor(1) as undertaker:
            _Run(program, new, writer, undertaker).run()
            settle(new / "done", root)
    return root / "store"


@contextmanager
def new_folder(parent: Path) -> Iterator[Path]:
    """Give a new folder that is there for as long as it is used."""
    parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def settle(made: Path, root: Path) -> None:
    """Give what was made its place, unless another process was faster."""
    try:
        made.rename(root)
    except OSError:
        if not root.exists():
            raise


def write_topics(root: Path, topics: Mapping[str, Mapping[str, str]], n_queues: int = 4) -> None:
    """Write the table of topics, with their attributes, as a broker keeps it."""
    table = {
        name: {
            "attributes": dict(attributes), "order": False, "perm": 6, "readQueueNums": n_queues,
            "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": 0,
            "writeQueueNums": n_queues,
        }
        for name, attributes in topics.items()
    }  # fmt: skip
    version = {"counter": len(table), "stateVersion": 0, "timestamp": _BEGIN_MS}
    _write_table(root, "topics.json", {"dataVersion": version, "topicConfigTable": table})


def _write_table(root: Path, name: str, table: Mapping[str, Any]) -> None:
    """Write a table of a broker, and keep the one that was there before as its backup."""
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.replace(path.with_name(f"{name}.bak"))
    path.write_text(json.dumps(table, indent=1))


class _Run:
    """A program that runs: each method is a step of the same name."""

    def __init__(
        self, program: str, folder: Path, writer: Writer, undertaker: ThreadPoolExecutor
    ) -> None:
        self._seed, *self._steps = program.split(";")
        self._settings, self._real = settings(program), writer.real
        self._folder, self._undertaker = folder, undertaker
        self._done = folder / "done"
        self._yesterday = self._done / "yesterday"
        self._done.mkdir()
        self._clock = writer.clock
        self._now, self._n_stores = _BEGIN_MS, 0
        self._durable, self._durable_time = Durable(0, {}), 0
        self._queues: set[tuple[str, int]] = set()
        self._root = folder / "0"
        self._open()

    def run(self) -> None:
        """Run all steps, close the store if it was not killed last, and tidy it up."""
        is_killed = False
        for number, step in enumerate(self._steps):
            name, _, arguments = step.partition("=")
            if (method := getattr(self, f"_do_{name}", None)) is None:
                continue
            is_killed = name == "kill" and number == len(self._steps) - 1
            self._dice = random.Random(f"{self._seed} {step}")
            words = arguments.split(",") if arguments else []
            method(*(int(word) if word.isdigit() else word for word in words))
        if not is_killed:
            self._close()
        self._root.rename(self._done / "store")
        _tidy([self._done / "store", self._yesterday])

    def _open(self) -> None:
        self._store: RealStore = self._real.open(self._root, **self._settings)
        field = self._store._default.getClass().getDeclaredField("systemClock")
        field.setAccessible(True)
        field.set(self._store._default, self._clock)
        self._clock.set(self._now)

    def _close(self) -> None:
        flushed = self._durable_time
        self._do_flush()
        self._write_tables()
        shut_down(self._real.java, self._store.store)
        index = sorted((self._root / "index").glob("*"))[:-1]
        filled = int.from_bytes(index[-1].read_bytes()[8:16]) if index else 0
        self._write_checkpoint(self._root, flushed, self._now, filled)

    def _write_checkpoint(self, root: Path, *times: int) -> None:
        """Write the times of the checkpoint, which depend on when threads ran."""
        with (root / "checkpoint").open("r+b") as file:
            file.write(struct.pack(">3q", *times))

    def _put(self, topic: str, queue_id: int, body: bytes, **others: Any) -> int:
        self._now += self._dice.choice((0, 1, 20, 500))
        self._clock.set(self._now)
        self._queues.add((topic, queue_id))
        return int(self._store.put(topic, queue_id, body, **others).getLogicsOffset())

    def _body(self) -> bytes:
        size = self._dice.choice((0, 10, 100, 100, 400, self._dice.randrange(3000)))
        return (self._dice.randbytes(8) * (size // 8 + 1))[:size]

    def _do_put(self, topic: str, n_queues: int, count: int) -> None:
        dice = self._dice
        for number in range(count):
            keys = " ".join(f"k{dice.randrange(count)}" for _ in range(dice.choice((0, 1, 1, 2))))
            tags = dice.choice((None, "t0", "t1", "t2"))
            unique = {"UNIQ_KEY": f"{topic}{dice.getrandbits(60):015X}{number:04X}"}
            self._put(
                topic, dice.randrange(n_queues), self._body(), tags=tags, keys=keys or None,
                properties=dice.choice(({"p": "v"}, unique)),
            )  # fmt: skip

    def _do_batch(self, topic: str, count: int) -> None:
        for number in range(count):
            self._now += self._dice.choice((0, 1, 20, 500))
            self._clock.set(self._now)
            bodies = [self._body()[:500] for _ in range(self._dice.randint(1, 5))]
            properties = b"KEYS\x01kb%d\x02" % number
            self._queues.add((topic, 0))
            self._store.put_batch(topic, 0, bodies, properties, {"UNIQ_KEY": f"B{number}"})

    def _do_delay(self, count: int) -> None:
        for _ in range(count):
            level = self._dice.choice((1, 3, 18))
            properties = {"DELAY": str(level), "REAL_TOPIC": "A", "REAL_QID": "0"}
            self._put(_SCHEDULE, level - 1, self._body(), properties=properties)

    def _do_half(self, count: int) -> None:
        for number in range(count):
            properties = {
                "REAL_TOPIC": "B", "REAL_QID": "0", "TRAN_MSG": "true", "PGROUP": "g1",
                "UNIQ_KEY": f"H{number:04X}",
            }  # fmt: skip
            body = self._body()
            offset = self._put(_HALF, 0, body, properties=properties)
            decision = self._dice.choice(("commit", "rollback", None))
            if decision == "commit":
                self._put("B", 0, body, properties={"TRAN_MSG": "true", "PGROUP": "g1"})
            if decision is not None:
                self._put(_OP, 0, b"%d," % offset, tags="d")

    def _do_lmq(self, count: int) -> None:
        if "enableLmq" in self._settings:
            for _ in range(count):
                names = self._dice.choice(("%LMQ%a", "%LMQ%a,%LMQ%b", "%LMQ%b"))
                self._put("Parent", 0, self._body(), properties={"INNER_MULTI_DISPATCH": names})

    def _do_clock(self, seconds: int) -> None:
        self._now += seconds * 1000

    def _do_flush(self) -> None:
        """Note what no power cut takes any more."""
        self._store.wait()
        ends = {queue: self._store.queue_range(*queue)[1] for queue in self._queues}
        self._durable = Durable(self._store.store.getMaxPhyOffset(), ends)
        self._durable_time = self._now

    def _do_expire(self, count: int) -> None:
        self._store.wait()
        self._store.expire(count)

    def _do_again(self, topic: str) -> None:
        self._store.wait()
        topics = self._real.java.util.HashSet()
        topics.add(topic)
        self._store.store.getBrokerConfig().setAutoDeleteUnusedStats(False)  # there are none
        self._store.store.deleteTopics(topics)
        self._queues = {queue for queue in self._queues if queue[0] != topic}

    def _do_backup(self) -> None:
        self._store.wait()
        self._write_tables()
        shutil.rmtree(self._yesterday, ignore_errors=True)
        shutil.copytree(self._root, self._yesterday)
        self._write_checkpoint(self._yesterday, self._durable_time, self._durable_time, 0)

    def _do_restart(self) -> None:
        self._close()
        self._open()

    def _do_kill(self, _seed: int) -> None:
        """Go on with what is left when the power is cut."""
        self._store.wait()
        self._write_tables()
        self._n_stores += 1
        copy = self._folder / str(self._n_stores)
        shutil.copytree(self._root, copy)
        ends = dict.fromkeys(self._queues, 0) | self._durable.queue_ends
        cut_files(copy, Durable(self._durable.log_end, ends), self._dice)
        told = self._dice.choice((0, self._durable_time, self._durable_time, self._now))
        self._write_checkpoint(copy, told, told, self._dice.choice((0, told)))
        self._undertaker.submit(shut_down, self._real.java, self._store.store)
        self._root = copy
        if self._steps[-1] != f"kill={_seed}":
            self._open()

    def _write_tables(self) -> None:
        """Write what the broker knows of topics and groups."""
        root = self._root
        dice = random.Random(f"{self._seed} {len(self._queues)}")
        write_topics(root, {topic: {} for topic, _ in sorted(self._queues)})
        offsets: dict[str, dict[str, int]] = {}
        for topic, queue_id in sorted(self._queues):
            if topic in TOPICS:
                _, end = self._store.queue_range(topic, queue_id)
                offsets.setdefault(f"{topic}@{dice.choice(GROUPS)}", {})[str(queue_id)] = (
                    dice.randint(0, end)
                )
        _write_table(root, "consumerOffset.json", {"offsetTable": offsets})
        delays = {str(queue_id + 1): 1 for topic, queue_id in self._queues if topic == _SCHEDULE}
        _write_table(root, "delayOffset.json", {"offsetTable": dict(sorted(delays.items()))})


def _new_clock(real: RocketMQ) -> Any:
    """Return a clock of the real store that a program sets, compiled by the JVM that it is for."""
    import rocketmq_jvm  # of examples/, which interop.rocketmq makes known

    java, gateway = real.java, real._gateway
    jars = sorted((rocketmq_jvm.SPARK_HOME / "jars").glob("*[jc]*o*-*.jar"))
    files = [jar for jar in jars if jar.name.startswith(("janino-", "commons-compiler-"))]
    urls = gateway.new_array(java.net.URL, len(files))
    for number, jar in enumerate(files):
        urls[number] = java.io.File(str(jar)).toURI().toURL()
    known = real.rocketmq.common.SystemClock().getClass().getClassLoader()
    loader = java.net.URLClassLoader.newInstance(urls, known)
    none, nothing = real.classes(), gateway.new_array(java.lang.Object, 0)
    kind = loader.loadClass("org.codehaus.janino.SimpleCompiler")
    compiler = kind.getDeclaredConstructor(none).newInstance(nothing)
    compiler.setParentClassLoader(known)
    compiler.cook(_CLOCK)
    clock = compiler.getClassLoader().loadClass("Clock")
    return clock.getDeclaredConstructor(none).newInstance(nothing)


def _tidy(roots: Iterable[Path]) -> None:
    """Give what is named or written by the time and the process the same name and bytes always."""
    there = [root for root in roots if root.exists()]
    names = sorted({file.name for root in there for file in root.glob("index/*")})
    for root in there:
        for number, name in enumerate(names):
            if (file := root / "index" / name).exists():
                file.rename(file.with_name(str(_FIRST_INDEX + number)))
        if (abort := root / "abort").exists():
            abort.write_text("1")
