"""What this machine lacks: tests that need it are skipped, and a run ends with how to get it."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest
from _pytest.terminal import TerminalReporter

_MARK = "not run here: "


def skip(what: str, how: str, *, may_lack: bool = False) -> NoReturn:
    """Skip the test, and name what is missing and how to get it; with CI=true, fail.

    Args:
        what: what is missing, such as ``Java 17``.
        how: what to do about it.
        may_lack: also a machine of CI may lack it.
    """
    if os.environ.get("CI", "").lower() == "true" and not may_lack:
        pytest.fail(f"{what} is missing: {how}; with CI=true nothing is skipped")
    pytest.skip(f"{_MARK}{what} is missing: {how}")


def require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if not (shutil.which("java") or (home and Path(home, "bin", "java").exists())):
        skip("Java 17", "install a JDK 17 (Debian: openjdk-17-jre-headless), or set JAVA_HOME")


def summarize(reporter: TerminalReporter) -> None:
    reasons = Counter(
        report.longrepr[2].partition(_MARK)[2]
        for report in reporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and _MARK in report.longrepr[2]
    )
    if reasons:
        reporter.section("not run on this machine")
        for reason, count in sorted(reasons.items()):
            reporter.line(f"{count} tests: {reason}")
