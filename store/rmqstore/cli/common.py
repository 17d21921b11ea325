"""What the verbs share: exit codes, consoles, questions and progress.

Exit codes: 0 clean, 1 damage, 2 wrong usage or an error that ended the command, 3 no row with
--fail-if-empty, 4 a question was answered with no, 130 interrupted (SIGINT), 141 stdout was closed
(SIGPIPE).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import click
import pyarrow as pa
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    Progress as ProgressBar,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from rmqstore import platforms
from rmqstore.cli.options import Command, options
from rmqstore.cli.parameters import QUIET, with_flags
from rmqstore.errors import (
    NotPermittedError,
    RmqStoreError,
    StoreFormatError,
    argument_names,
    number_of,
)
from rmqstore.progress import Progress, ignore_progress

DAMAGE = 1
USAGE = 2
DECLINED = 4
PIPE_CLOSED = 141
BYTES: Final = "bytes"
err_console = Console(stderr=True)


def say(text: str) -> None:
    """Print a line to stderr, above the progress if there is any."""
    err_console.print(text, markup=False, highlight=False, soft_wrap=True)


def ends_clearly(command: Command) -> Command:
    """Turn errors of this package into a line on stderr and an exit code, and add ``--tz``."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        # A shell closes streams by `>&-`. What is written to stdout then fails as in a closed pipe.
        if sys.stdin is None:
            sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - until the process ends
        if sys.stderr is None:
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
        if sys.stdout is None:
            reader, writer = os.pipe()
            os.close(reader)
            sys.stdout = os.fdopen(writer, "w")
        platforms.write_alike(sys.stdout, sys.stderr)
        try:
            with argument_names(with_flags):
                command(*args, **kwargs)
        except BrokenPipeError:  # for instance by `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(PIPE_CLOSED)
        except (RmqStoreError, OSError) as err:
            # A file that may not be read says nothing about the store.
            if isinstance(err, StoreFormatError) and not isinstance(err, NotPermittedError):
                click.echo(f"damage: {err}", err=True)
                sys.exit(DAMAGE)
            click.echo(f"error: {err}", err=True)
            sys.exit(USAGE)

    return options("time_zone")(run)


def repeated(
    poll: Callable[[], Iterator[pa.RecordBatch]], pause: float
) -> Iterator[pa.RecordBatch]:
    """Yield what a function gives, again and again, until SIGINT or SIGTERM.

    Raises:
        BrokenPipeError: nobody reads stdout any more, which otherwise only the next write shows.

    Args:
        poll: gives batches.
        pause: seconds between two calls.
    """
    is_over = Event()
    before: dict[int, Any] = {}

    def end(_number: int, _frame: object) -> None:
        is_over.set()
        restore()  # the next signal ends the process at once

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, end)
    is_closed: Callable[[], bool] | None = None
    with suppress(OSError):  # what is printed goes to no file
        is_closed = platforms.watch_of_pipe(sys.stdout.fileno())
    try:
        while not is_over.is_set():
            for batch in poll():
                yield batch
                if is_over.is_set():
                    return
            if is_closed is not None and is_closed():
                raise BrokenPipeError
            is_over.wait(pause)
    finally:
        restore()


@contextmanager
def stopped_by_signals(stop: Event) -> Iterator[list[int]]:
    """Set an event at SIGINT and SIGTERM; yields the list that gets the number of the signal.

    A thread sets it. A handler could interrupt the main thread while that holds the event's lock.

    Raises:
        UnsupportedFeatureError: this is not Linux, where alone it is needed and was tried.
    """
    platforms.require_linux("a live copy")
    received: list[int] = []
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    numbers = (signal.SIGINT, signal.SIGTERM)

    def wait_for_signal() -> None:
        while number := os.read(reader, 1):
            if number[0] in numbers:
                received.append(number[0])
                stop.set()

    def on_signal(_number: int, _frame: object) -> None:
        """Do nothing: with a handler in Python, the number is written to the pipe."""

    thread = Thread(target=wait_for_signal, name="follow-signals", daemon=True)
    thread.start()
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    before = [signal.signal(number, on_signal) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)
        os.close(writer)
        thread.join()
        os.close(reader)


def end_if_damaged(count: int, what: str, see: str = "") -> None:
    """Say how many findings, queues or records are damage; if any is, exit with ``DAMAGE``."""
    if count:
        click.echo(f"damage: {number_of(count, what)}{see}", err=True)
        sys.exit(DAMAGE)


def must_ask(*, yes: bool) -> bool:
    """Return whether a person is there to be asked; scripts are not."""
    return not yes and sys.stdin.isatty()


def confirm(lines: list[str], question: str, *, dry_run: bool) -> None:
    """Say what a verb will change, and ask whether it shall; end the command if not.

    A dry run says it on stdout and ends the command.
    """
    for line in lines:
        click.echo(line, err=not dry_run)
    if dry_run:
        click.get_current_context().exit()
    if not click.confirm(question, err=True):
        click.echo("nothing was changed", err=True)
        sys.exit(DECLINED)


def counted(
    batches: Iterable[pa.RecordBatch],
    doing: str,
    total: int | None = None,
    *,
    unit: str = "messages",
    stays: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches and show the number of their rows on stderr; see :func:`progress_bar`.

    Those of a batch count when the next one is asked for.
    """
    n_rows = 0
    with progress_bar(doing, unit, stays=stays) as progress:
        for batch in batches:
            yield batch
            n_rows += len(batch)
            progress(n_rows, total or 0)


@contextmanager
def progress_bar(doing: str, unit: str = BYTES, *, stays: bool = True) -> Iterator[Progress]:
    """Show progress on stderr if that is a terminal, and --quiet is not given.

    Yields the callback that takes how much is done, and the total, 0 if that is not known. In the
    end the total is what was done: a limit, or damage, may leave a part of it.

    Args:
        doing: what is done.
        unit: what is counted: ``BYTES``, or the plural of a noun.
        stays: whether the last line stays on the terminal.
    """
    if not err_console.is_terminal or click.get_current_context().meta.get(QUIET):
        yield ignore_progress
        return
    parts = (
        TextColumn(
            "{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
        ),
        BarColumn(bar_width=20),
        _Pace(unit),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    )
    with ProgressBar(*parts, console=err_console, expand=True, transient=not stays) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
        bar.update(task, total=bar.tasks[0].completed)


class _Pace(ProgressColumn):
    """How much is done: the share, the amount of the total, and the amount of a second."""

    def __init__(self, unit: str) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._unit = unit

    def render(self, task: Task) -> Text:
        """Return the text for a task."""
        share = total = ""
        if task.total is not None:
            share = f"{100 if task.finished else task.percentage:3.0f} % "
            total = f"/{self._size(task.total)}"
        speed = task.finished_speed or task.speed
        rate = "" if speed is None else f" {self._size(speed)}/s"
        unit = "" if self._unit == BYTES else f" {self._unit}"
        return Text(f"{share}{self._size(task.completed)}{total}{unit}{rate}")

    def _size(self, number: float) -> str:
        return decimal(int(number)) if self._unit == BYTES else f"{int(number):,}"
