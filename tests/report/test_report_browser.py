"""The page in a real browser: nothing complains, the controls work, no screen is too narrow.

Needs Chromium, and fails where there is none: a page that nobody opened is not tested.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.observe.report import write_report
from headrace.types import Json
from report_support import item, whole_run, write_items

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--enable-logging=stderr",
    "--window-size=1400,900",
    "--virtual-time-budget=20000",
    "--dump-dom",
)

PROBE = """
const frame = document.querySelector("iframe");
frame.addEventListener("load", async () => {
  const page = frame.contentDocument;
  const all = (query) => [...page.querySelectorAll(query)];
  const shown = () => all(".items > article").filter((item) => !item.hidden);
  const numbers = () => shown().map((item) => item.querySelector("header b").textContent);
  const buttons = () => all(".filters button");
  const press = (name) => buttons().find((b) => b.textContent.startsWith(name)).click();
  const key = (name) =>
    page.dispatchEvent(new frame.contentWindow.KeyboardEvent("keydown", { key: name }));
  const here = () => page.activeElement.querySelector("header b")?.textContent;
  const told = {};

  told.first = numbers();
  told.verbatim = page.querySelector(".items .side pre").innerText;
  press("lost");
  told.lost = numbers();
  told.outcomes = [...new Set(shown().map((item) => item.dataset.outcome))];
  press("all");
  press("→");
  told.second = numbers();
  told.pages = page.querySelector(".pages span").textContent;
  press("all");
  key("j");
  told.j = here();
  for (let i = 0; i < 20; i++) key("j");
  told.jj = [here(), shown().length];
  key("k");
  told.jjk = here();

  const area = page.querySelector("#reward .area");
  const output = page.querySelector("#reward .legend output");
  const box = area.getBoundingClientRect();
  told.latest = output.textContent;
  const at = { clientX: box.left + (box.width * 3) / 22, clientY: box.top + 5, bubbles: true };
  area.dispatchEvent(new frame.contentWindow.PointerEvent("pointermove", at));
  told.pointed = [output.textContent, page.querySelector("#reward .cursor b").textContent];
  told.others = all(".cursor").every((cursor) => !cursor.hidden);
  area.dispatchEvent(new frame.contentWindow.PointerEvent("pointerleave"));
  told.left = output.textContent;

  const domains = () => all("#domains tbody tr").map((row) => row.cells[0].textContent);
  told.unsorted = domains();
  all("#domains th button")[2].click();
  told.sorted = domains();

  told.overflow = {};
  for (const width of [340, 390, 768, 1280]) {
    frame.style.width = width + "px";
    await new Promise((done) => setTimeout(done, 50));
    const root = page.documentElement;
    told.overflow[width] = root.scrollWidth - root.clientWidth;
  }
  told.pwned = "pwned" in frame.contentWindow;
  document.querySelector("output").textContent = JSON.stringify(told);
});
"""


def browse(page: str, folder: Path) -> tuple[dict[str, Json], list[str]]:
    """What the probe found on a page, and everything that the browser's console said."""
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail("no Chromium to open the report with: apt-get install chromium")
    outer = folder / "outer.html"
    outer.write_text(
        "<!doctype html><meta charset=utf-8><output></output>"
        f'<iframe style="border:0;width:1280px;height:900px" srcdoc="{html.escape(page)}">'
        f"</iframe><script>{PROBE}</script>",
        encoding="utf-8",
    )
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(
        [found, *FLAGS, f"--user-data-dir={folder / 'profile'}", outer.as_uri()],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    result = re.search(r"<output>(.+?)</output>", done.stdout, re.DOTALL)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert result is not None, f"the page did not work: {said} {done.stderr[-500:]}"
    return json.loads(html.unescape(result[1])), said


def test_filters_pages_keys_readout_and_sorting_work_and_nothing_overflows(tmp_path: Path) -> None:
    run = whole_run(tmp_path, items=60, domains=3).run
    spaced = "\n\n  two  spaces\n\tand a tab"
    items = [item(i, solved=i % 3 == 0) for i in range(60)]
    write_items(run, 0, [items[0] | {"completion": spaced}, *items[1:]])
    page = write_report(run.path).read_text(encoding="utf-8")
    told, said = browse(page, tmp_path)
    assert said == []
    assert told["verbatim"] == spaced
    assert told["first"] == [str(n) for n in range(1, 21)]
    assert told["lost"] == ["1", "52"]
    assert told["outcomes"] == ["lost"]
    assert told["second"] == [str(n) for n in range(21, 41)]
    assert told["pages"] == "21–40 of 60"
    assert (told["j"], told["jj"], told["jjk"]) == ("1", ["21", 20], "20")
    legend = re.search(r'data-values="(.*?)"', page)
    assert legend is not None
    rewards: list[float] = json.loads(legend[1])[0]
    assert told["pointed"] == [str(rewards[3]), "3"]
    assert told["latest"] == told["left"] == str(rewards[-1])
    assert told["others"] is True
    assert told["unsorted"] == ["arithmetic", "rg/domain_001", "rg/domain_002"]
    assert sorted(told["sorted"]) == told["unsorted"]
    assert told["overflow"] == {"340": 0, "390": 0, "768": 0, "1280": 0}


def test_markup_that_slipped_into_the_page_could_not_run(tmp_path: Path) -> None:
    run = whole_run(tmp_path, items=60, domains=3).run
    page = write_report(run.path).read_text(encoding="utf-8")
    slipped = page.replace(
        "</main>",
        "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'></main>",
    )
    told, said = browse(slipped, tmp_path)
    assert told["pwned"] is False
    assert any("Content Security Policy" in line for line in said)
