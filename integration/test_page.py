"""``barrier serve`` beside a real query that is killed: in a browser, and as a scrape that counts what the judge counts."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from integration import ROOT
from integration.broker import Cluster
from integration.debian import UnpackedPackage, is_debian, unpacked
from integration.driver_process import DriverProcess, wait_until
from integration.served import Served
from integration.topic_jobs import produce_keyed, topic_to_topic

pytestmark = pytest.mark.skipif(not is_debian(), reason="Chromium and promtool are taken from Debian's packages")

SCREENSHOTS = "BARRIER_SCREENSHOTS"
"""The environment variable that names a folder for the pictures; a temporary one otherwise."""

WIDE, SMALL = (1280, 400), (390, 600)
RULES = ROOT / "docs" / "monitoring" / "alerts.yml"

CASES = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'barrier_query_state{location="a", state="gone"}', values: "0 1x20"}
      - {series: 'barrier_query_state{location="done", state="gone"}', values: "1x20"}
      - {series: 'barrier_source_lag_offsets{location="done", topic="t"}', values: "0x20"}
      - {series: 'barrier_source_lag_offsets{location="a", topic="t"}', values: "5x20"}
      - {series: 'barrier_oldest_transaction_seconds{location="a"}', values: "0+60x20"}
      - {series: 'barrier_transaction_lifetime_seconds{location="a"}', values: "900x20"}
      - {series: 'barrier_transaction_overdue{location="a"}', values: "0x15 1x5"}
      - {series: 'barrier_stable_offset_lag{servers="s", topic="busy", partition="0"}', values: "3x40"}
      - {series: 'barrier_stable_offset{servers="s", topic="busy", partition="0"}', values: "0+5x40"}
      - {series: 'barrier_stable_offset_lag{servers="s", topic="held", partition="0"}', values: "3x40"}
      - {series: 'barrier_stable_offset{servers="s", topic="held", partition="0"}', values: "7x40"}
      - {series: 'barrier_query_state{location="away", state="unseen"}', values: "1x40"}
      - {series: 'barrier_source_lag_offsets{location="away", topic="t"}', values: "5x40"}
    alert_rule_test:
      - eval_time: 35m
        alertname: BarrierReadersHeldBack
        exp_alerts:
          - exp_labels: {severity: warning, servers: s, topic: held, partition: "0"}
            exp_annotations:
              summary: "Open transactions hold readers of held-0 back"
              action: "barrier transactions explain held LOCATION..."
      - eval_time: 30m
        alertname: BarrierNoCheckpoint
        exp_alerts:
          - exp_labels: {severity: warning, location: away, state: unseen}
            exp_annotations:
              summary: "away has rows to read, and has completed no checkpoint for 15 minutes"
              action: "barrier checkpoints show away"
      - {eval_time: 5m, alertname: BarrierDriverGone}
      - {eval_time: 5m, alertname: BarrierTransactionNearTimeout}
      - eval_time: 7m
        alertname: BarrierDriverGone
        exp_alerts:
          - exp_labels: {severity: critical, location: a, state: gone}
            exp_annotations:
              summary: "The driver of a is gone, with rows to read or to commit"
              action: "Start the query. Its prepared transactions wait until they time out."
      - eval_time: 17m
        alertname: BarrierTransactionOverdue
        exp_alerts:
          - exp_labels: {severity: critical, location: a}
            exp_annotations:
              summary: "The oldest transaction of a is older than its timeout"
              action: "Start the query: it finds what was lost and repairs it, or stops and names what is missing."
"""


def fetched(package: str) -> UnpackedPackage:
    try:
        return unpacked(package)
    except subprocess.CalledProcessError as problem:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"Debian's archives can't be reached: {problem.stderr.decode()[-300:]}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = fetched("chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.program("usr/lib/chromium/chromium-headless-shell"),
            env=dict(chromium.environment()),
            args=["--no-sandbox"],  # root has no other
        )
        yield browser
        browser.close()


@pytest.fixture
def location() -> Iterator[Path]:
    """Return a short path, for pictures."""
    path = Path("/tmp") / f"orders-{uuid.uuid4().hex[:4]}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Watched:
    """Pages of one browser: anything on their consoles is a failure."""

    def __init__(self, browser: Browser, address: str, folder: Path) -> None:
        self._browser, self._address = browser, address
        self._folder = Path(os.environ.get(SCREENSHOTS, str(folder)))  # For screenshots.
        self._folder.mkdir(parents=True, exist_ok=True)
        self.said: list[str] = []

    def open(self, path: str = "", size: tuple[int, int] = WIDE, **more: Any) -> Page:
        """Open a view in a window of a size."""
        width, height = size
        page = self._browser.new_page(viewport={"width": width, "height": height}, **more)
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.goto(self._address + path)
        expect(page.locator("#live")).to_have_text("live")
        return page

    def take(self, page: Page, name: str) -> None:
        """Take a picture, after looking that nothing is wider than the window."""
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        page.screenshot(path=self._folder / f"{name}.png", full_page=True)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_query_that_is_killed_is_followed_on_the_page_and_counted_as_its_judge_counts(
    kafka: Cluster, tmp_path: Path, location: Path, browser: Browser
) -> None:
    topic_name = location.name
    job, output = topic_to_topic(kafka, topic_name)
    job = replace(job, batches=8, location=str(location))
    produce_keyed(kafka, f"{topic_name}-in", range(job.batches * job.rows))
    with (
        DriverProcess(tmp_path, job, output) as driver,
        Served(str(driver.place.location)) as served,
    ):
        place = driver.place
        watched = Watched(browser, served.address, tmp_path / "pictures")
        overview = watched.open()
        state = overview.locator("tbody td").first
        expect(state).to_have_text("has not run")
        driver.start()
        expect(state).to_have_text("driver runs", timeout=60_000)
        driver.wait_committed(1)
        driver.kill()
        expect(state).to_have_text("driver gone", timeout=30_000)

        driver.faults.arm("decision.written", "kill-jvm")
        driver.start()
        driver.wait_death("decision.written")
        assert len(output.open_transactions()) == 2
        # The last column that a reader sees without a reload: which partitions this query holds back.
        expect(overview.locator("tbody td").nth(4)).not_to_have_text("-", timeout=30_000)
        expect(state).to_have_text("driver gone", timeout=30_000)
        watched.take(overview, "overview")
        transactions = watched.open("transactions")
        command = f"barrier stop {place.location}"
        expect(transactions.locator("article code")).to_have_text([command], timeout=30_000)
        expect(transactions.locator("article tbody tr")).to_have_count(2)
        expect(overview.locator("code")).to_have_text([command], timeout=30_000)
        transactions.context.grant_permissions(["clipboard-read", "clipboard-write"])
        transactions.get_by_role("button", name=f"Copy {command}").click()
        assert transactions.evaluate("navigator.clipboard.readText()") == command
        # A look at the brokers in the moment of the death knew the journal of a moment before, without the decision.
        served.until("metrics", lambda text: 'verdict="decided"} 2.0' in text)
        watched.take(transactions, "transactions")
        scraped = served.metrics()
        servers = kafka.bootstrap_servers
        assert scraped["barrier_query_state", "gone"] == 1
        assert scraped["barrier_unsettled_checkpoints",] == 1
        assert scraped["barrier_committed_rows_total",] == sum(output.rows().values())
        assert scraped["barrier_open_transactions", servers, "decided"] == 2
        held = {
            int(labels[0]): value
            for (name, *labels), value in scraped.items()
            if name == "barrier_stable_offset_lag" and labels[2] == topic_name
        }
        assert held == {number: high - stable for number, (stable, high) in output.held_back().items()}

        driver.faults.arm("commit.one", "kill-jvm")  # in the recovery
        driver.start()
        driver.wait_death("commit.one")
        wait_until(lambda: len(output.open_transactions()) == 1, "markers of what was committed")
        output.lose(output.open_transactions())
        driver.finish()
        assert output.rows() == Counter(range(driver.expected))
        served.until("queries/0", lambda text: f"decided up to {job.batches - 1}" in text)
        scraped = served.metrics()
        assert scraped["barrier_committed_rows_total",] == driver.expected
        assert scraped["barrier_repaired_parts_total",] == 1
        assert scraped["barrier_checkpoints_total", "completed"] == job.batches
        assert scraped["barrier_restores_total",] == 3
        assert scraped["barrier_unsettled_checkpoints",] == scraped["barrier_lost_parts",] == 0
        served.until("metrics", lambda text: 'verdict="decided"} 0.0' in text)

        expect(overview.locator("tbody td").nth(4)).to_have_text("-", timeout=30_000)
        query = watched.open("queries/0")
        expect(query.locator("#charts canvas")).to_have_count(4)
        watched.take(query, "query")
        timeline = query.locator("#charts .u-over").first
        box = timeline.bounding_box()
        assert box is not None
        timeline.hover(position={"x": box["width"] - 2, "y": box["height"] / 2})
        expect(query.locator("#said")).to_contain_text("checkpoint ")
        timeline.click(position={"x": box["width"] - 2, "y": box["height"] / 2})
        expect(query.locator("h1")).to_contain_text("Checkpoint ")
        expect(query.locator("#live")).to_have_text("live")
        watched.take(query, "checkpoint")
        watched.take(watched.open("queries/0", SMALL, color_scheme="dark"), "query-small")
        watched.take(watched.open("", SMALL), "overview-small")
        by_keys(watched.open())
        assert watched.said == []
        check_metrics(served.ask("metrics").text)


def by_keys(page: Page) -> None:
    """Go to a query without a mouse."""
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("tbody th a")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#configuration")).to_be_visible()


def check_metrics(text: str) -> None:
    assert promtool("check", "metrics", input=text) == (0, "")


def promtool(*words: str, **more: Any) -> tuple[int, str]:
    """Run promtool; return its exit status and what it prints."""
    prometheus = fetched("prometheus")
    command = [prometheus.program("usr/bin/promtool"), *words]
    said = subprocess.run(command, env=prometheus.environment(), capture_output=True, text=True, check=False, **more)
    return said.returncode, said.stdout + said.stderr


def test_prometheus_takes_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    (tmp_path / "cases.yml").write_text(CASES)
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "cases.yml"]):
        status, said = promtool(*words, cwd=tmp_path)
        assert status == 0, said
