"""The report: its numbers are those of the store, it escapes all data, and a browser draws it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import goldens
import missing
import rmqstore
import store_builder as build
from command_line import refusal, run
from goldens import Golden
from reading import state
from rmqstore.errors import Finding
from rmqstore.format.topics import is_system_topic
from rmqstore.inspect import remedies
from rmqstore.inspect.charts import OTHER_TOPICS, SYSTEM_TOPICS
from rmqstore.inspect.facts import StoreFacts
from rmqstore.inspect.report import gather, render, size, span, time

MADE_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CHARTS = {  # what each draws
    "rate": ".plot path.bars", "bytes": ".track i", "messages": ".track i", "lag": ".track i",
    "skew": ".dot",
}  # fmt: skip
HOSTILE = "<script>alert('group')</script>"


def facts_of(path: Path, **options: Any) -> StoreFacts:
    with rmqstore.open(path) as store:
        return gather(store, **options)


# ---- the numbers


@pytest.mark.parametrize("name", goldens.PLAIN)
def test_topics_have_the_messages_and_bytes_of_the_real_store(
    golden_store: Golden, name: str
) -> None:
    facts = facts_of(golden_store(name), with_verify=False)
    rows = goldens.lines(name, "expected")
    found = {each.topic: (each.messages, each.n_bytes) for each in facts.topics if each.messages}
    counts, sizes = Counter(row["topic"] for row in rows), Counter[str]()
    for row in rows:
        sizes[row["topic"]] += row["storeSize"]
    assert found == {topic: (counts[topic], sizes[topic]) for topic in counts}
    assert (facts.messages, facts.n_bytes) == (len(rows), sum(row["storeSize"] for row in rows))
    assert not facts.is_estimated
    assert facts.findings is None


@pytest.mark.parametrize("name", goldens.PLAIN)
def test_rates_hold_every_message_once(golden_store: Golden, name: str) -> None:
    rates = facts_of(golden_store(name), with_verify=False).rates
    rows = goldens.lines(name, "expected")
    if not rows:
        assert rates is None
        return
    assert rates is not None
    assert sum(float(counts.sum()) for counts in rates.counts.values()) == pytest.approx(len(rows))
    assert all((counts > -1e-9).all() for counts in rates.counts.values())
    assert len(rates.starts) <= 121
    assert int(rates.starts[0]) <= min(row["storeTimestamp"] for row in rows)
    assert int(rates.starts[-1]) + rates.width_ms > max(row["storeTimestamp"] for row in rows)


@pytest.mark.parametrize("name", ["basic", "live", "crash"])
def test_rates_of_queues_whose_every_message_is_sampled_are_exact(
    golden_store: Golden, name: str
) -> None:
    """No queue of these has more messages than are looked at."""
    rates = facts_of(golden_store(name), with_verify=False).rates
    assert rates is not None
    rows = goldens.records(name) if name in goldens.CRASHED else goldens.lines(name, "expected")
    checked = 0
    for topic, counts in rates.counts.items():
        times = [row["storeTimestamp"] for row in rows if row["topic"] == topic]
        if topic not in (OTHER_TOPICS, SYSTEM_TOPICS) and times == sorted(times):
            expected = np.histogram(times, [*rates.starts, rates.starts[-1] + rates.width_ms])[0]
            assert counts == pytest.approx(expected), topic
            checked += 1
    assert checked


def test_many_topics_are_summed_up(live: Path) -> None:
    rates = facts_of(live, with_verify=False).rates
    assert rates is not None
    counts = Counter(goldens.summary("live")["counts"]["perTopic"])
    of_system = sum(counts.pop(name) for name in [*counts] if is_system_topic(name))
    largest = dict(counts.most_common(8))
    others = counts.total() - sum(largest.values())
    assert set(rates.counts) == {*largest, OTHER_TOPICS, SYSTEM_TOPICS}
    assert float(rates.counts[OTHER_TOPICS].sum()) == pytest.approx(others)
    assert float(rates.counts[SYSTEM_TOPICS].sum()) == pytest.approx(of_system)


def test_bytes_of_large_stores_are_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, n_bytes = build.Store(), 0
    for number in range(60):
        record = build.Record(queue_offset=number, body=b"x" * 100)
        store.append(record)
        n_bytes += len(build.pack(record, 0))
    monkeypatch.setattr("rmqstore.inspect.report._EXACT_UNITS", 50)
    facts = facts_of(store.write(tmp_path / "s"), with_verify=False)
    assert facts.is_estimated
    assert facts.n_bytes == n_bytes  # all of one size
    assert "≈" in render([facts], MADE_AT)


def test_groups_show_how_far_they_are_behind(live: Path) -> None:
    offsets = re.search(r'"LivePlain@CG_part":\{([^}]*)\}', _text(live))
    assert offsets is not None
    committed = re.findall(r'"?(\d+)"?\s*:\s*(\d+)', offsets[1])
    queues = [row for row in goldens.summary("live")["queues"] if row["topic"] == "LivePlain"]
    ends = {str(row["queueId"]): row["maxOffset"] for row in queues}
    lag = sum(ends[queue] - int(at) for queue, at in committed)
    worst = facts_of(live, with_verify=False).groups[0]
    assert (worst.group, worst.topic) == ("CG_part", "LivePlain")
    assert (worst.queues, worst.lag) == (len(committed), lag)


@pytest.mark.parametrize(
    ("committed", "earlier", "level", "consumed"),
    [
        (2000, 2000, "none", 0), (1999, 1999, "small", 0), (900, 900, "stuck", 0),
        (900, 850, "late", 50), (900, None, "late", None),
    ],
)  # fmt: skip
def test_a_lag_is_judged_by_its_size_and_by_progress(
    tmp_path: Path, committed: int, earlier: int | None, level: str, consumed: int | None
) -> None:
    store = build.filled(build.Record(topic="T", queue_offset=number) for number in range(2000))
    root = store.write(tmp_path / "s")
    (root / "config").mkdir(exist_ok=True)
    for name, offset in (("", committed), (".bak", earlier)):
        if offset is not None:
            table = {"offsetTable": {"T@G": {"0": offset}}}
            (root / "config" / f"consumerOffset.json{name}").write_text(json.dumps(table))
    (group,) = facts_of(root, with_verify=False).groups
    assert (group.lag, group.level, group.consumed) == (2000 - committed, level, consumed)


@pytest.mark.parametrize("content", [b"", b"{", b"{}"], ids=str)
def test_groups_that_are_not_known_are_not_said_to_be_none(copied: Golden, content: bytes) -> None:
    root = copied("live")
    (root / "config" / "consumerOffset.json").write_bytes(content)
    (root / "config" / "consumerOffset.json.bak").unlink()
    page = render([facts_of(root, with_verify=False)], MADE_AT)
    is_known = content == b"{}"
    assert ("No group has committed an offset." in page) == is_known
    assert (" 0 groups<" in page) == is_known
    assert re.search(r'class="note">[^<]*consumerOffset\.json', page) or is_known


def test_a_short_lag_of_long_ago_is_late(tmp_path: Path) -> None:
    store = build.Store()
    for number in range(3):
        time_of = build.T0 + 600_000 * number
        store.append(build.Record(topic="T", queue_offset=number, store_timestamp=time_of))
    root = store.write(tmp_path / "s")
    build.write_offsets(root, {"T@G": {0: 1}})
    (group,) = facts_of(root, with_verify=False).groups
    assert (group.lag, group.lag_millis, group.level) == (2, 600_000, "late")


def _text(root: Path) -> str:
    return (root / "config" / "consumerOffset.json").read_text()


def test_the_check_finds_what_verify_finds(golden_store: Golden) -> None:
    assert facts_of(golden_store("live")).findings == []
    found = facts_of(golden_store("crash")).findings
    shown = run("verify", golden_store("crash"), "--json")
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [dict(zip(Finding._fields[:3], each, strict=False)) for each in found or []] == lines
    assert found


@pytest.mark.parametrize("name", goldens.EVERY)
def test_every_store_has_a_page_and_stays_as_it_is(golden_store: Golden, name: str) -> None:
    before = state(golden_store(name))
    page = render([facts_of(golden_store(name))], MADE_AT)
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    assert state(golden_store(name)) == before


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (size(None), "\N{EN DASH}"), (size(1023), "1,023 B"), (size(1536), "1.5 KiB"),
        (size(5 << 40), "5.0 TiB"), (time(1_700_000_000_000), "2023-11-14 22:13:20"),
        (span(999), "999 ms"), (span(61_000), "1 min 1 s"), (span(90_061_000), "1 d 1 h"),
        (span(None), "\N{EN DASH}"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_people_read_them(found: str, expected: str) -> None:
    assert found == expected


# ---- the page as text


def hostile_store(folder: Path) -> Path:
    """Return a store whose topic, group and broker are called what would be markup in a page."""
    topic = "</script><b onmouseover=alert(1)>T"
    store = build.filled(
        build.Record(topic="T", queue_offset=number, store_timestamp=build.T0 + 1000 * number)
        for number in range(40)
    )
    root = store.write(folder)
    (root / "consumequeue" / "T").rename(root / "consumequeue" / topic.replace("/", "|"))
    build.write_offsets(root, {f"{topic.replace('/', '|')}@{HOSTILE}": {0: 3}})
    (root / "brokerIdentity").write_text("cluster#<img src=x onerror=alert(2)>#0")
    return root


def test_nothing_of_a_store_is_markup(tmp_path: Path) -> None:
    page = render([facts_of(hostile_store(tmp_path / "s"))], MADE_AT)
    assert "&lt;script&gt;alert(&#39;group&#39;)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "<b onmouseover" not in page
    assert page.count("<script") == 1


def test_findings_come_with_their_remedies_the_worst_first(golden_store: Golden) -> None:
    facts = facts_of(golden_store("crash"))
    facts.checked = remedies.CheckedStore("'/data/a store'", "")
    facts.findings = [*(facts.findings or ()), Finding("log", "1", "damaged")]
    page = render([facts], MADE_AT)
    kinds = ("lost", "log", "unbuilt", "queue", "index")
    places = [page.index(remedies._REMEDIES[kind].effect) for kind in kinds]
    assert places == sorted(places)
    assert "<code>rmqstore rebuild &#39;/data/a store&#39;</code>" in page
    assert "--truncate" not in page


def test_what_a_start_of_the_broker_loses_comes_first_with_how_to_read_it(
    golden_store: Golden,
) -> None:
    page = render([facts_of(golden_store("crash2"))], MADE_AT)
    assert "54 records of 18.9 KiB follow, which a broker that starts loses" in page
    assert "not messages" not in page
    commands = [f"<code>rmqstore {command} " for command in ("export", "rebuild")]
    texts = ["What the check found", remedies._REMEDIES["end"].effect, *commands]
    places = [page.index(text) for text in texts]
    assert places == sorted(places)
    assert {*re.findall(r"<code>rmqstore rebuild [^<]*</code>", page)} == {
        f"<code>rmqstore rebuild {golden_store('crash2')} --truncate</code>"
    }


def test_a_page_of_large_stores_is_small(live: Path) -> None:
    facts = facts_of(live, with_verify=False)
    facts.queues *= 400
    page = render([facts], MADE_AT)
    assert "2,000 of 17,600 are shown" in page
    assert len(page) < 1_200_000


def test_several_stores_are_shown_on_one_page(golden_store: Golden, tmp_path: Path) -> None:
    page = tmp_path / "both.html"
    stores = golden_store("live"), golden_store("basic")
    assert run("report", *stores, "-o", page, "--no-verify").exit_code == 0
    text = page.read_text(encoding="utf-8")
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert {"stores", "store-1", "store-2", "s1-topics", "s2-topics"} <= set(ids)
    assert set(re.findall(r'href="#([^"]*)"', text)) <= set(ids)


def test_the_page_names_nothing_of_the_network(live: Path) -> None:
    page = render([facts_of(live)], MADE_AT)
    assert not re.findall(r"<(?:script|link|img|iframe|source)[^>]*(?:src|href)=", page)
    assert "default-src 'none'" in page


# ---- the verb


def test_report_writes_a_page_and_its_exit_code_says_what_verify_found(
    golden_store: Golden, tmp_path: Path
) -> None:
    clean, damaged = tmp_path / "clean.html", tmp_path / "damaged.html"
    shown = run("report", golden_store("live"), "-o", clean)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "broker-a" in clean.read_text(encoding="utf-8")
    given = ("report", golden_store("crash"), "-o", damaged)
    assert run(*given).exit_code == 1
    assert run(*given, "--no-verify", "--overwrite").exit_code == 0
    assert "not checked" in damaged.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean.html", "damaged.html"]


def test_report_refuses_a_file_that_is_there_or_in_the_store_or_in_no_folder(
    golden_store: Golden, tmp_path: Path
) -> None:
    root = golden_store("one")
    (tmp_path / "there.html").write_text("mine")
    for page, reason in (
        (tmp_path / "there.html", "--overwrite"),
        (root / "report.html", "lies in the store"),
        (tmp_path / "none" / "r.html", "there is no folder"),
    ):
        assert reason in refusal("report", root, "-o", page)
    assert (tmp_path / "there.html").read_text() == "mine"


def test_report_of_a_log_with_a_missing_file_says_so(golden_store: Golden, tmp_path: Path) -> None:
    for name, lost in (("basic", 1), ("crash2", 1), ("crash2", -1)):
        root = Path(shutil.copytree(golden_store(name), tmp_path / f"{name}{lost}"))
        sorted((root / "commitlog").iterdir())[lost].unlink()
        page = tmp_path / f"{name}{lost}.html"
        shown = run("report", root, "-o", page)
        assert shown.exit_code == 1, shown.stderr
        assert 'id="findings"' in page.read_text(encoding="utf-8")


def test_report_of_queues_in_rocksdb_says_what_it_lacks(
    golden_store: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    assert run("report", golden_store("rocksdb-cq"), "-o", tmp_path / "r.html").exit_code == 0
    assert "They lie in RocksDB" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert run("report", golden_store("live"), "-o", tmp_path / "l.html").exit_code == 0
    assert "RocksDB" not in (tmp_path / "l.html").read_text(encoding="utf-8")


def test_report_says_what_to_install_where_a_library_is_missing(
    golden_store: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    said = refusal("report", golden_store("one"), "-o", tmp_path / "r.html")
    assert "pip install 'pyspark-rmqstore[report]'" in said
    assert not (tmp_path / "r.html").exists()


# ---- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return Debian's chromium; without it skip the tests, or fail if nothing may be skipped."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        how = "install them (Debian: chromium chromium-driver)"
        missing.skip("chromium with chromedriver", how)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--window-size=1280,1000"):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    yield found
    found.quit()


def _show(browser: Any, page: Path, *words: object) -> None:
    """Let a browser show the report of some stores."""
    assert run("report", *words, "-o", page).exit_code in (0, 1)
    for log in ("performance", "browser"):
        browser.get_log(log)  # what went before
    browser.get(page.as_uri())
    _wait(browser, "return document.readyState === 'complete'")


def _wait(browser: Any, script: str) -> None:
    """Wait until a script returns true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 30).until(lambda _: browser.execute_script(script))


def _requested(browser: Any) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    urls = [params["request"]["url"] for params in sent]
    return [url for url in urls if not url.startswith("data:")]


def _table(browser: Any, name: str) -> list[list[str]]:
    rows = "[...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
    found: list[list[str]] = browser.execute_script(
        f"return {rows}.map(r => [...r.cells].map(c => c.innerText))", name
    )
    return found


def _number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.browser
def test_a_browser_draws_the_charts_without_errors_or_network(
    browser: Any, live: Path, tmp_path: Path
) -> None:
    page = tmp_path / "live.html"
    _show(browser, page, live)
    for name, marks in CHARTS.items():
        sizes = browser.execute_script(
            "return [...document.querySelectorAll(`#chart-${arguments[0]} ${arguments[1]}`)]"
            ".map(mark => mark.getBoundingClientRect()).map(box => [box.width, box.height])",
            name, marks,
        )  # fmt: skip
        seen = [box for box in sizes if min(box) > 0.5]
        assert len(seen) > 2, name
    assert browser.get_log("browser") == []
    assert _requested(browser) == [page.as_uri()]
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) == 0


# Returns what lies outside of its card by more than a pixel of rounding.
OVERFLOWING = """
const found = [];
for (const card of document.querySelectorAll("section, .key")) {
  const around = card.getBoundingClientRect();
  for (const part of card.querySelectorAll("*")) {
    if (part.closest(".scroll *") || part.closest("title")) continue;
    const box = part.getBoundingClientRect();
    if (!box.width && !box.height) continue;
    if (box.right > around.right + 1 || box.left < around.left - 1
        || box.bottom > around.bottom + 1 || box.top < around.top - 1)
      found.push([card.innerText.split("\\n")[0], part.tagName, part.getAttribute("class")]);
  }
}
return found;
"""
# Returns the pairs of neighbouring labels of an axis that touch each other.
TOUCHING = """
const found = [];
for (const axis of document.querySelectorAll(".times, .strip.axis")) {
  const labels = [...axis.children].filter(label => label.getBoundingClientRect().width);
  for (let row = 1; row < labels.length; row++)
    if (labels[row].getBoundingClientRect().left < labels[row - 1].getBoundingClientRect().right)
      found.push([labels[row - 1].textContent, labels[row].textContent]);
}
return found;
"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 900, 390])
def test_nothing_runs_out_of_its_card(
    browser: Any, golden_store: Golden, tmp_path: Path, width: int, scheme: str
) -> None:
    page, stores = tmp_path / "both.html", (golden_store("live"), golden_store("crash"))
    screen = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    preferred = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", preferred)
    try:
        _show(browser, page, *stores)
        assert browser.execute_script("return document.documentElement.clientWidth") in range(
            width - 20, width + 1
        )
        assert browser.execute_script(OVERFLOWING) == []
        assert browser.execute_script(TOUCHING) == []
        background = "return getComputedStyle(document.body).backgroundColor"
        first = re.findall(r"\d+", browser.execute_script(background))[0]
        assert (int(first) < 64) == (scheme == "dark")
        assert browser.get_log("browser") == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.browser
def test_a_table_is_sorted_filtered_and_printed_whole(
    browser: Any, live: Path, tmp_path: Path
) -> None:
    page = tmp_path / "live.html"
    _show(browser, page, live, "--no-verify")
    facts = facts_of(live, with_verify=False)
    size_title = browser.find_elements("css selector", "#queues th button")[5]
    of_rows = "return [...document.querySelectorAll('#queues tbody tr')]"
    sizes = f"{of_rows}.map(r => +r.cells[5].dataset.v)"
    for order in (True, False):
        size_title.click()
        expected = sorted((queue.n_bytes or 0 for queue in facts.queues), reverse=order)
        assert browser.execute_script(sizes) == expected
    browser.find_element("css selector", "[data-rows=queues]").send_keys("liveplain")
    shown = f"{of_rows}.filter(r => !r.hidden).length"
    assert browser.execute_script(shown) == sum(one.topic == "LivePlain" for one in facts.queues)
    hidden = (
        "return [...document.querySelectorAll('.scroll')]"
        ".some(part => part.scrollHeight > part.clientHeight + 1)"
    )
    browser.execute_script("document.querySelector('[data-rows=queues]').value = ''")
    browser.execute_script(
        "document.querySelector('[data-rows=queues]').dispatchEvent(new Event('input'))"
    )
    assert browser.execute_script(hidden)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not browser.execute_script(hidden)
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.browser
def test_bars_are_linear_until_the_other_scale_is_asked_for(browser: Any, tmp_path: Path) -> None:
    store = build.Store()
    times = [*(build.T0 + 60_000 * n for n in range(50)), *(build.T0 + n for n in range(2000))]
    for number, time_of in enumerate(sorted(times)):
        store.append(build.Record(queue_offset=number, store_timestamp=time_of))
    page = tmp_path / "burst.html"
    _show(browser, page, store.write(tmp_path / "s"), "--no-verify")
    shown = (
        "return [...document.querySelectorAll('.plot')]"
        ".filter(plot => plot.offsetHeight).map(plot => plot.classList[1])"
    )
    assert browser.execute_script(shown) == ["linear"]
    browser.find_element("css selector", "input[value=logarithmic]").click()
    assert browser.execute_script(shown) == ["logarithmic"]


@pytest.mark.browser
def test_a_browser_shows_the_numbers_of_the_real_store(
    browser: Any, golden_store: Golden, tmp_path: Path
) -> None:
    page, name = tmp_path / "live.html", "live"
    _show(browser, page, golden_store(name))
    rows = goldens.lines(name, "expected")
    counts = goldens.summary(name)["counts"]["perTopic"]
    tables = [*_table(browser, "topics"), *_table(browser, "system-topics")]
    topics = {row[0]: row for row in tables}
    assert {topic: _number(row[2]) for topic, row in topics.items() if row[2] != "0"} == counts
    for topic in counts:
        n_bytes = sum(row["storeSize"] for row in rows if row["topic"] == topic)
        assert topics[topic][3] == size(n_bytes)
    queues = {
        (row[0].removesuffix("system").strip(), int(row[1])): tuple(map(_number, row[2:5]))
        for row in _table(browser, "queues")
    }
    assert len(queues) == len(goldens.summary(name)["queues"])
    for row in goldens.summary(name)["queues"]:
        low, high = row["minOffset"], row["maxOffset"]
        assert queues[row["topic"], row["queueId"]] == (low, high, high - low)
    files = {row[0]: _number(row[1]) for row in _table(browser, "files")}
    paths = [one["path"] for one in goldens.summary(name)["files"]]
    assert files["commitlog"] == len([path for path in paths if "commitlog/" in path])
    keys = {"messages": str(len(rows)), "queues": str(len(queues)), "findings": "0"}
    assert {key: browser.find_element("id", f"key-{key}").text for key in keys} == keys


@pytest.mark.browser
def test_a_browser_takes_names_for_text(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "hostile.html"
    _show(browser, page, hostile_store(tmp_path / "s"))
    (group,) = _table(browser, "groups")
    assert group[0] == HOSTILE
    assert browser.find_element("tag name", "h1").text == "<img src=x onerror=alert(2)>"
    marked = "return document.querySelectorAll('img, b[onmouseover]').length"
    assert browser.execute_script(marked) == 0
    labels = browser.execute_script(
        "return [...document.querySelectorAll('#chart-lag .label, #chart-bytes .label')]"
        ".map(t => t.textContent)"
    )
    assert any(text.startswith("<script>alert('group')") for text in labels)
    assert any(text.startswith("<|script><b onmouseover") for text in labels)
    assert browser.get_log("browser") == []
    assert _requested(browser) == [page.as_uri()]
