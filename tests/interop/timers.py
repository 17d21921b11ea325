"""The real timer wheel: a store whose messages it delivers when they are due."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from interop.rocketmq import RealStore, RocketMQ

TOPIC = "rmq_sys_wheel_timer"
REAL_TOPIC = "Timed"
N_MESSAGES = 260
SIZES: dict[str, Any] = {
    "mappedFileSizeCommitLog": 131072,
    "mappedFileSizeConsumeQueue": 8000,
    "mappedFileSizeTimerLog": 5216,  # 100 units, so that the newest one of three has 60
    "maxHashSlotNum": 100,
    "maxIndexNum": 1000,
}
_LEAD_SECONDS = 14  # from the first put to the first message that is due
_A_SECOND = 20  # messages one after the other that are due in one second
_A_FILE = 100  # the first of each file are all due in the last second
_LAST_SECOND = -(-N_MESSAGES // _A_SECOND)
_PATIENCE = 12
_IDLE = 1.0


class RealTimerStore(RealStore):
    """A DefaultMessageStore and its TimerMessageStore, as a broker starts the two."""

    def __init__(self, real: RocketMQ, root: Path) -> None:
        self.timers: Any = None
        super().__init__(real, root, SIZES)
        self.timers.start(True)

    def _load(self) -> bool:
        timer = self._real.rocketmq.store.timer
        config, folder = self.store.getMessageStoreConfig(), self.root / "config"
        checkpoint = timer.TimerCheckpoint(str(folder / "timercheck"))
        metrics = timer.TimerMetrics(str(folder / "timermetrics"))
        arguments = (self.store, config, checkpoint, metrics, self._stats())
        self.timers = timer.TimerMessageStore(*arguments)
        self.store.setTimerMessageStore(self.timers)
        return super()._load() and bool(self.timers.load())

    def __exit__(self, *_: object) -> None:
        # else it tries for ever to deliver what it cannot read
        self.store.getMessageStoreConfig().setTimerSkipUnknownError(True)
        self.timers.shutdown()
        super().__exit__()

    def fill(self) -> float:
        """Put messages that are due one after the other; return the time, s, when all are due."""
        first = int(time.time()) + _LEAD_SECONDS
        for number in range(N_MESSAGES):
            is_last = number % _A_FILE < _A_SECOND
            second = _LAST_SECOND if is_last else number // _A_SECOND
            properties = {
                "REAL_TOPIC": REAL_TOPIC, "REAL_QID": "0",
                "TIMER_OUT_MS": str((first + second) * 1000), "UNIQ_KEY": f"{number:032X}",
            }  # fmt: skip
            self.put(TOPIC, 0, b"%d" % number, properties=properties)
        log = self.timers.getTimerLog().getMappedFileQueue()
        # One file is flushed each second.
        while log.getFlushedWhere() < log.getMaxOffset() or not log.getMaxOffset():
            assert time.time() < first, "the timer wheel takes too long"
            time.sleep(0.05)
        assert self.timers.getCommitQueueOffset() == N_MESSAGES
        return first + _LAST_SECOND + 1

    def delivered(self) -> tuple[Counter[int], bool]:
        """Return how often each message was delivered, and whether the wheel goes on turning.

        Call it when all messages are due.
        """
        due, until, last, since = time.time() * 1000, time.time() + _PATIENCE, -1, time.time()
        while time.time() < until and time.time() - since < _IDLE:
            _, end = self.queue_range(REAL_TOPIC, 0)
            if end != last or self.timers.getCurrReadTimeMs() < due:
                last, since = end, time.time()
            time.sleep(0.05)
        turns = self.timers.getCurrReadTimeMs() >= due
        bodies = (message["body"] for message in self.messages(REAL_TOPIC, 0))
        return Counter(map(int, bodies)), turns
