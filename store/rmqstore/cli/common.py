"""What the verbs share: exit codes, consoles, common options and progress.

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
from rmqstore.cli.verbs import main
from rmqstore.errors import (
    NotPermittedError,
    OptionError,
    RmqStoreError,
    StoreFormatError,
    argument_names,
    rename_arguments,
)
from rmqstore.progress import Progress, ignore_progress
from rmqstore.query.options import help_of
from rmqstore.query.times import time_zone
from rmqstore.storage.broker.config_files import BrokerConfig
from rmqstore.storage.broker.folders import find_store, root_of_part
from rmqstore.storage.broker.store_config import root_of
from rmqstore.storage.files.local import LOCAL
from rmqstore.storage.files.paths import StorePaths

DAMAGE, USAGE, DECLINED, PIPE_CLOSED = 1, 2, 4, 141
BYTES: Final = "bytes"
CONFS: Final = "rmqstore.confs"  # the settings in brokers' files, in the context of a command
err_console = Console(stderr=True)


def say(text: str) -> None:
    """Print a line to stderr, above the progress if there is any."""
    err_console.print(text, markup=False, highlight=False, soft_wrap=True)


Command = Callable[..., None]
# Parameters of verbs that are called otherwise than the argument that they stand for.
_PARAMETERS = {
    "starting_timestamp": ("begin",),
    "ending_timestamp": ("end",),
    "timestamp": ("time",),
    "subscribe": ("topics", "topic"),
    "assign": ("queue_ids",),
    "starting_offsets": ("offset",),
    "include_system_topics": ("with_system",),
    "scan": ("scan_by",),
    "msg_key": ("keys",),
    "msg_id": ("ids",),
    "msg_tags": ("tags",),
    "consumer_group": ("group",),
    "default_queue_nums": ("queue_nums",),
    "fail_on_data_loss": ("ignore_data_loss",),
    "path": ("path", "paths"),
}


def with_flags(text: str) -> str:
    """Return a text of the core with the options that stand for arguments in the command that runs.

    Where it has no such option, it is that of ``dump``, and else the argument of Python.
    """
    context = click.get_current_context(silent=True)
    verb_is_named = False

    def flag(name: str, value: str | None) -> str:
        nonlocal verb_is_named
        if context is not None:
            own = _flag_of(name, value, context.command)
            if own is not None:
                return own
        of_dump = _flag_of(name, value, main.verb("dump"))
        if of_dump is not None and value is not None:
            verb = "" if verb_is_named else "dump "
            verb_is_named = True
            return verb + of_dump
        argument = name if value is None else f"{name}={value}"
        return f"{argument} (in Python)" if "_" in name else argument

    return rename_arguments(text, flag)


def _flag_of(argument: str, value: str | None, command: click.Command) -> str | None:
    known = {each.name: each for each in command.params}
    names = (argument, *_PARAMETERS.get(argument, ()))
    option = next((known[name] for name in names if name in known), None)
    if option is None:
        return None
    if isinstance(option, click.Argument):
        return str(option.human_readable_name).strip("[].").upper()
    if not value:
        return "/".join(option.opts)
    longest = max(option.opts, key=len)
    is_switch = isinstance(option, click.Option) and option.is_flag
    return longest if is_switch else f"{longest} {value}"


def _keep_zone(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    try:
        context.with_resource(time_zone(value))
    except OptionError as err:
        raise click.BadParameter(str(err).partition(": ")[2]) from err


_tz_option = click.option(
    "--tz",
    metavar="ZONE",
    envvar="RMQSTORE_TZ",
    expose_value=False,
    callback=_keep_zone,
    help="Zone of times, given without one and shown, such as Asia/Shanghai, +08:00 or local; "
    "UTC by default.",
)


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
        except NotPermittedError as err:  # which says nothing about the store
            click.echo(f"error: {err}", err=True)
            sys.exit(USAGE)
        except StoreFormatError as err:
            click.echo(f"damage: {err}", err=True)
            sys.exit(DAMAGE)
        except RmqStoreError as err:
            click.echo(f"error: {err}", err=True)
            sys.exit(USAGE)
        except OSError as err:
            click.echo(f"error: {err}", err=True)
            sys.exit(USAGE)

    return _tz_option(run)


def _stays_open() -> bool:
    return False


def repeated(
    look: Callable[[], Iterator[pa.RecordBatch]], pause: float
) -> Iterator[pa.RecordBatch]:
    """Yield what a function gives, again and again, until SIGINT or SIGTERM.

    Raises:
        BrokenPipeError: nobody reads stdout any more, which otherwise only the next write shows.

    Args:
        look: gives batches.
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
    is_closed = _stays_open
    with suppress(OSError):  # what is printed goes to no file
        is_closed = platforms.watch_of_pipe(sys.stdout.fileno())
    try:
        while not is_over.is_set():
            for batch in look():
                yield batch
                if is_over.is_set():
                    return
            if is_closed():
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


_QUIET: Final = "rmqstore.quiet"


def _keep_quiet(context: click.Context, _option: click.Parameter, value: bool) -> None:
    context.meta[_QUIET] = value


shows_progress = click.option(
    "-q", "--quiet", is_flag=True, expose_value=False, callback=_keep_quiet, help="No progress."
)

broker_stopped_option = click.option(
    "--broker-stopped",
    is_flag=True,
    help=help_of("broker_stopped"),
)


def asks_first(command: Command) -> Command:
    """Add the options of a verb that changes a store: ``dry_run`` and ``yes``."""
    for option in (
        click.option("-y", "--yes", is_flag=True, help="Do not ask on a terminal."),
        click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing."),
    ):
        command = option(command)
    return command


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


def complete_topics(context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics of the stores that a command line names so far, for a shell."""
    topics: set[str] = set()
    for paths in _stores_named(context):
        with suppress(RmqStoreError, OSError):
            topics |= {
                *paths.queue_folders.topics(),
                *paths.queue_folders.batch_topics(),
                *BrokerConfig(paths).topics(),
            }
    return sorted(topic for topic in topics if topic.startswith(incomplete))


def complete_groups(context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Return their consumer groups."""
    groups: set[str] = set()
    for paths in _stores_named(context):
        with suppress(RmqStoreError, OSError):
            groups |= {*BrokerConfig(paths).groups()}
    return sorted(group for group in groups if group.startswith(incomplete))


def _stores_named(context: click.Context) -> Iterator[StorePaths]:
    # Before an option that lacks its value click leaves arguments as they are.
    words = *context.args, *(context.params.get("paths") or ()), *(context.params.get("ids") or ())
    roots = {Path(one): None for one in (*words, context.params.get("path")) if one}
    roots = {root_of_part(path, LOCAL) or path: None for path in roots}
    confs = context.meta.get(CONFS) or ()
    for path, conf in [*roots.items(), *((None, conf) for conf in confs)]:
        with suppress(RmqStoreError, OSError):
            yield find_store(root_of(path, conf), conf=conf)


with_system_topics = click.option(
    "--all", "with_system", is_flag=True, help="Include system topics."
)
some_topics = click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="Only this topic; may be repeated.",
)


def counted(
    batches: Iterable[pa.RecordBatch],
    doing: str,
    total: int | None = None,
    *,
    unit: str = "messages",
    stays: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches and show the number of their rows on stderr; see :func:`progress_bar`."""
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
    if not err_console.is_terminal or click.get_current_context().meta.get(_QUIET):
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
