"""The page of a session: what is in the file, and what a person in front of a browser finds.

The browser tests need Debian's ``chromium`` and ``chromium-driver``, and say so where they are skipped.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from corral.errors import FailureKind
from corral.report import BenchmarkResult, html
from corral.types import TaskTrialResult
from tests.support.browser import Browser, browser, missing
from tests.support.results import graded, lost
from tests.support.sessions import HOSTILE, everything

in_a_browser = pytest.mark.skipif(bool(missing()), reason=missing())


def test_the_file_needs_nothing_beside_it(tmp_path: Path) -> None:
    text = everything().export(tmp_path / "night.html").read_text("utf-8")
    markup = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", markup)
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text
    assert "<title>a &lt;night&gt; | Corral</title>" in text


def test_nothing_that_a_model_wrote_can_end_its_script_element(tmp_path: Path) -> None:
    text = everything().export(tmp_path / "night.html").read_text("utf-8")
    assert HOSTILE[:20] not in text
    assert "<img" not in text
    blocks = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', text, re.DOTALL)
    assert [name for name, _ in blocks] == [f"t{task}-{index}" for task in range(3) for index in range(3)] + ["data"]
    found = {name: json.loads(data) for name, data in blocks}
    assert found["t0-2"]["answer"] == HOSTILE
    assert HOSTILE in found["t1-0"]["attempts"][1]["output"]


@pytest.mark.parametrize("name", ["$details", "costs $data and $js", "$css", "$title $$ ${js}"])
def test_a_run_may_have_any_name(name: str, tmp_path: Path) -> None:
    text = replace(everything(), run_name=name).export(tmp_path / "night.html").read_text("utf-8")
    assert f"<title>{name} | Corral</title>" in text
    blocks = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', text, re.DOTALL)
    assert len(blocks) == 10
    assert json.loads(dict(blocks)["data"])["run_name"] == name


def test_a_run_may_be_named_by_bytes_that_are_no_text(tmp_path: Path) -> None:
    """As an argument of the command is that is not UTF-8."""
    text = replace(everything(), run_name="night \udcff").export(tmp_path / "night.html").read_text("utf-8")
    assert r"<title>night \udcff | Corral</title>" in text


def test_a_large_session_keeps_the_details_of_its_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_DETAILS", 4)
    monkeypatch.setattr(html, "MAX_TEXT", 10)
    text = everything().export(tmp_path / "night.html").read_text("utf-8")
    assert re.findall(r'id="(t\d-\d)"', text) == ["t1-0", "t1-1", "t1-2", "t0-0"]
    assert "more characters are in report.json" in text


# --- in a browser ---


@pytest.fixture(autouse=True)
def no_process_left() -> None:
    """In place of the check after each test: one browser serves all tests here, and ``browser`` sees to its end."""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def page(window: Browser, tmp_path: Path) -> Browser:
    window.look()
    window.log()
    window.open(everything().export(tmp_path / "night.html"))
    return window


@in_a_browser
def test_the_page_draws_itself_without_an_error_and_asks_for_nothing(page: Browser) -> None:
    assert page.run("return document.documentElement.dataset.ready") == "yes"
    assert page.run("return document.title") == "a <night> | Corral"
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    assert page.log() == []
    assert "0.583" in page.text("#figures") or "0.361" in page.text("#figures")
    assert page.run("return document.querySelectorAll('#tasks button.cell').length") == 9
    assert page.run("return document.querySelectorAll('#timeline .span').length") == 9
    assert page.run("return document.querySelector('#timeline .renewed title').textContent") == (
        "slot 0 got a new worker at 3.20 s"
    )


@in_a_browser
def test_a_failing_trial_and_its_reason_are_one_click_away(page: Browser) -> None:
    assert "killed by signal 11 (SIGSEGV) during tool weigh" in page.text("#failing")  # without any click
    page.click("#failing button.link")
    shown = page.text("#trial")
    for piece in (
        "crash#0",
        "worker_died",
        "Attempt 1",
        "Attempt 2",
        "exit status -11",
        "Segfault soon",
        "Traceback: x",
    ):
        assert piece in shown, piece
    assert "<img src=x onerror=alert(1)>" in shown  # as text


@in_a_browser
def test_a_trial_shows_its_transcript_answer_and_score(page: Browser) -> None:
    page.click("#tasks button.cell")
    shown = page.text("#trial")
    for piece in ("salt/one#0", "Score 1.000", "answer 0", "I weigh it.", 'weigh(what="salt")', "2 g",
                  "Worker output", "balance on port 3"):  # fmt: skip
        assert piece in shown, piece
    page.run("document.querySelectorAll('#trial details').forEach((item) => { item.open = true; })")
    assert "1.25 s" in page.text("#trial")


@in_a_browser
def test_the_keyboard_is_enough(page: Browser) -> None:
    page.run("document.querySelector('#tasks button.cell').focus()")
    page.press("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "Enter")
    assert page.text("#trial-title") == "salt/one#2"
    page.press("Tab", "ArrowLeft")
    assert page.text("#trial-title") == "salt/one#1"
    page.press("Escape")
    assert page.run("return document.getElementById('trial').open") is False
    assert "salt/one#2" in page.run("return document.activeElement.ariaLabel")  # back where it was opened
    focusable = "button.cell[tabindex='0']"
    assert page.run(f'return document.querySelectorAll("{focusable}").length') == 1  # one stop for the whole grid


@in_a_browser
def test_a_failing_trial_and_its_reason_are_found_by_keyboard_alone(page: Browser) -> None:
    page.run("document.body.focus()")
    page.press("Tab")
    assert page.run("return document.activeElement.textContent") == "Skip to the trials"
    page.press("Tab", "Tab", "Enter")  # over the menu of kinds to the first of the list
    assert page.run("return document.getElementById('trial').open") is True
    assert page.text("#trial-title") == "crash#0"
    assert "killed by signal 11 (SIGSEGV) during tool weigh" in page.text("#trial .why")
    page.press("ArrowRight")
    assert page.text("#trial-title") == "crash#1"  # the next one of the failures
    page.press("Escape")
    assert page.run("return document.activeElement.textContent") == "crash#0"


@in_a_browser
def test_trials_without_success_are_two_clicks_away(page: Browser) -> None:
    assert "2 more trials were graded without success: show them" in page.text("#failing")
    page.click("#failing p button.link")
    shown = "return [...document.querySelectorAll('#tasks button.cell')].map((cell) => cell.ariaLabel)"
    assert page.run(shown) == ["salt/one#1: no success, score 0.000", "calm#0: no success, score 0.000"]
    page.press("Enter")  # the first one has the focus
    assert page.text("#trial-title") == "salt/one#1"


@in_a_browser
def test_a_session_without_failures_says_so(window: Browser, tmp_path: Path) -> None:
    window.open(BenchmarkResult.collect("fine", ["a"], [graded("a", 0), graded("a", 1, 0.0)],
                                        trials_per_task=2).export(tmp_path / "fine.html"))  # fmt: skip
    assert window.text("#failing").splitlines()[0] == "Failures: none"
    assert "1 trial was graded without success" in window.text("#failing")
    window.open(BenchmarkResult.collect("best", ["a"], [graded("a", 0)]).export(tmp_path / "best.html"))
    assert window.run("return document.getElementById('failing').hidden") is True


@in_a_browser
def test_filters_and_links(page: Browser, tmp_path: Path) -> None:
    choose = """
    const menu = document.querySelector('#tasks select');
    menu.value = arguments[0];
    menu.dispatchEvent(new Event('change'));
    """
    page.run(choose, "failed")
    assert page.run("return document.querySelectorAll('#tasks button.cell').length") == 3
    page.run(choose, "unsuccessful")
    assert page.run("return document.querySelectorAll('#tasks button.cell').length") == 5
    page.click("#tasks input")
    page.press(*"calm")
    assert page.run("return document.querySelectorAll('#tasks button.cell').length") == 1
    page.open(tmp_path / "night.html", "?again#salt%2Fone%231")
    assert page.text("#trial-title") == "salt/one#1"


@in_a_browser
@pytest.mark.parametrize("width", [320, 390, 768, 1400])
def test_no_width_makes_the_page_scroll_sideways(page: Browser, width: int) -> None:
    page.look(width=width, height=800)
    assert page.run("return document.documentElement.scrollWidth") <= width
    page.run("document.querySelector('#failing button.link').click()")
    assert page.run("return document.getElementById('trial').scrollWidth") <= width


CONTRAST = """
const linear = (x) => (x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
const lum = (c) => { const v = c.map((x) => linear(x / 255));
  return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
const rgb = (text) => text.match(/[0-9.]+/g).map(Number);
const ground = (node) => { for (; node; node = node.parentElement) {
  const c = rgb(getComputedStyle(node).backgroundColor);
  if (c.length === 3 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
const poor = [];
for (const node of document.querySelectorAll('body *')) {
  const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !node.getClientRects().length || node instanceof SVGElement || node.disabled) continue;
  const a = lum(rgb(getComputedStyle(node).color)), b = lum(ground(node));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) poor.push(`${node.tagName}.${node.className} ${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
}
return poor;
"""


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(page: Browser, scheme: str) -> None:
    page.look(scheme=scheme)
    assert page.run(CONTRAST) == []
    page.click("#failing button.link")
    assert page.run(CONTRAST) == []


def _large() -> BenchmarkResult:
    def trial(task: str, index: int) -> TaskTrialResult:
        if (index * 7 + len(task)) % 23 == 0:
            return lost(task, index, FailureKind.TOOL_TIMEOUT, "tool weigh did not end within its limit of 5 s")
        template = everything().trials[0]
        messages = template.messages * 12
        return graded(task, index, index % 3 / 2, messages=messages, attempts=template.attempts, duration=index / 7)

    tasks = [f"task-{number}" for number in range(50)]
    records = [trial(task, index) for task in tasks for index in range(20)]
    return BenchmarkResult.collect("large", tasks, records, trials_per_task=20, k_values=(1, 5))


@in_a_browser
def test_the_page_of_a_thousand_trials_opens_in_two_seconds(window: Browser, tmp_path: Path) -> None:
    path = _large().export(tmp_path / "large.html")
    window.look()
    began = time.monotonic()
    window.open(path)
    assert window.run("return document.documentElement.dataset.ready") == "yes"
    assert time.monotonic() - began < 2
    assert window.run("return document.querySelectorAll('#tasks button.cell').length") == 1000
    assert "tool weigh did not end within its limit of 5 s" in window.text("#failing")


@in_a_browser
def test_a_session_without_any_record_has_a_page(window: Browser, tmp_path: Path) -> None:
    window.log()
    window.open(BenchmarkResult.collect("empty", ["a"], [], trials_per_task=2).export(tmp_path / "empty.html"))
    assert window.log() == []
    assert "0 of 2" in window.text("#figures")
