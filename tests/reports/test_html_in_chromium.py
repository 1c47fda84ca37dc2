"""The page in a real browser, offline. Debian: `apt-get install chromium chromium-driver`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.reports.conftest import Pages

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
NEEDED = "the report is looked at in Chromium: apt-get install chromium chromium-driver"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail(NEEDED)
    options = Options()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    found.execute_cdp_cmd("Network.enable", {})
    found.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
    )
    yield found
    found.quit()


def show(browser: webdriver.Chrome, html: str, folder: Path, *, width: int = 1200, scheme: str = "light") -> None:
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())


def script(browser: webdriver.Chrome, text: str) -> object:
    found: object = browser.execute_script(f"return {text}")
    return found


@pytest.mark.parametrize("run", ["good", "failing", "incomplete", "hostile", "large", "beside", "traced"])
def test_no_errors_and_no_horizontal_scroll(
    run: str, page_of: Pages, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    html = page_of(run)
    for width in (1200, 700, 400):
        show(browser, html, tmp_path, width=width)
        assert browser.get_log("browser") == []  # type: ignore[no-untyped-call] # selenium's own, without types
        assert script(browser, "document.documentElement.scrollWidth") == width
        assert script(browser, "performance.getEntriesByType('resource').length") == 0


def test_the_chart_has_marks_that_can_be_seen(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("good"), tmp_path)
    marks = browser.find_elements(By.CSS_SELECTOR, "[data-plot=time] svg [data-mark]")
    assert len(marks) == 8
    assert all(mark.size["width"] > 1 and mark.size["height"] > 5 for mark in marks)
    drawing = browser.find_element(By.CSS_SELECTOR, "[data-plot=time] svg")
    assert marks[0].rect["width"] / drawing.rect["width"] == pytest.approx(1.0, abs=0.03)
    # The widths are the shares: 0.12 of 0.52 for the second operator.
    assert marks[1].rect["width"] / marks[0].rect["width"] == pytest.approx(0.12 / 0.52, rel=0.02)


def test_light_and_dark_differ_and_the_chart_follows(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    colours = []
    for scheme in ("light", "dark"):
        show(browser, page_of("good"), tmp_path, scheme=scheme)
        chart = script(browser, "getComputedStyle(document.querySelector('svg.chart text')).fill")
        colours.append((script(browser, "getComputedStyle(document.body).backgroundColor"), chart))
        assert chart == script(browser, "getComputedStyle(document.body).color")
    assert colours[0][0] != colours[1][0]
    assert colours[0][1] != colours[1][1]


def test_the_skip_link_is_first_and_shows_itself(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("good"), tmp_path)
    browser.find_element(By.TAG_NAME, "body").send_keys("\ue004")  # Tab
    focused = browser.switch_to.active_element
    assert focused.text == "Skip to the report"
    assert focused.location["x"] >= 0
    focused.click()
    assert browser.switch_to.active_element.get_attribute("id") == "main"


def test_hostile_names_run_nothing(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("hostile"), tmp_path)
    assert script(browser, "document.scripts.length") == 3  # ours, and two that hold data
    assert script(browser, "document.images.length") == 0
    assert "<script>alert(1)</script>" in browser.find_element(By.TAG_NAME, "main").text


def shown(browser: webdriver.Chrome, table: str) -> list[list[str]]:
    """The rows of a table as they stand on the page, cell by cell."""
    rows = script(
        browser,
        f"[...document.querySelectorAll('[data-rows={table}] tbody tr')].map(row => "
        "[...row.cells].map(cell => cell.textContent.trim()))",
    )
    assert isinstance(rows, list)
    return rows


def test_a_head_sorts_by_keyboard_and_says_so(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("good"), tmp_path)
    name = "verdicts-on-every-traced-signature-before-the-lock"
    head = browser.find_element(By.CSS_SELECTOR, f"[data-rows={name}] th[data-name=calls]")
    button = head.find_element(By.TAG_NAME, "button")
    before = [row[2] for row in shown(browser, name)]
    assert before == ["646", "48", "16", "36", "16"]
    button.send_keys(Keys.ENTER)
    assert [row[2] for row in shown(browser, name)] == ["646", "48", "36", "16", "16"]
    assert head.get_attribute("aria-sort") == "descending"
    button.send_keys(Keys.SPACE)
    assert [row[2] for row in shown(browser, name)] == ["16", "16", "36", "48", "646"]
    assert head.get_attribute("aria-sort") == "ascending"


def test_shares_and_errors_are_sorted_as_numbers(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("failing"), tmp_path)
    name = "every-case-worst-first"
    open_all(browser)
    browser.find_element(By.CSS_SELECTOR, f"[data-rows={name}] th[data-name=error] button").click()
    texts = [row[5] for row in shown(browser, name)]
    errors = [float(text) for text in texts if text]
    assert errors == sorted(errors, reverse=True)
    assert texts[-2:] == ["", ""], "what has no error comes last, whatever the order"


def open_all(browser: webdriver.Chrome) -> None:
    browser.execute_script("document.querySelectorAll('details').forEach(one => { one.open = true; })")


def test_all_rows_of_a_large_run_are_found(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("large"), tmp_path)
    open_all(browser)
    name = "every-signature-heaviest-first"
    assert len(shown(browser, name)) == 40
    field = browser.find_element(By.CSS_SELECTOR, "input[aria-label='Search: Every signature, heaviest first']")
    count = field.find_element(By.XPATH, "following-sibling::span")
    field.send_keys("operator_17 missing")
    fitting = sum(str(number).startswith("17") and number % 3 == 1 for number in range(5000))
    wait(browser, lambda: count.text == f"{fitting} of 5,000 rows found, {fitting} shown")
    assert all("operator_17" in row[0] and row[2] == "missing" for row in shown(browser, name))
    field.send_keys(Keys.ESCAPE)
    wait(browser, lambda: count.text == "40 of 5,000 rows")
    more = browser.find_element(By.CSS_SELECTOR, f".scroll:has([data-rows={name}]) + .more-rows")
    more.click()
    wait(browser, lambda: count.text == "240 of 5,000 rows")
    assert len(shown(browser, name)) == 240
    assert not browser.find_element(By.CSS_SELECTOR, f".scroll:has([data-rows={name}]) ~ .more.cut").is_displayed()


def wait(browser: webdriver.Chrome, done: Callable[[], bool]) -> None:
    WebDriverWait(browser, 30, poll_frequency=0.05).until(lambda _: done())


def test_marks_of_every_chart_tell_what_they_are(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("beside"), tmp_path)
    plots = browser.find_elements(By.CSS_SELECTOR, "figure[data-plot]")
    names = [plot.get_attribute("data-plot") for plot in plots]
    assert names == ["time", "errors", "gates", "roofline", "peaks", "latency", "rates"]
    for plot in plots:
        marks = plot.find_elements(By.CSS_SELECTOR, "svg [data-mark]")
        assert marks
        assert all(mark.size["width"] > 0 and mark.size["height"] > 0 for mark in marks)
    mark = browser.find_elements(By.CSS_SELECTOR, "[data-plot=errors] svg [data-mark='aten::mm']")[-1]
    ActionChains(browser).move_to_element(mark).perform()
    tip = browser.find_element(By.CSS_SELECTOR, ".tip")
    assert tip.is_displayed()
    assert tip.text.splitlines()[0] == "aten::mm"
    assert "error 0.002, the dtype's own 0.0019, limit 0.0057" in tip.text


def test_marks_are_left_out_by_verdict_and_dimmed_by_operator(
    page_of: Pages, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    show(browser, page_of("good"), tmp_path)
    plot = browser.find_element(By.CSS_SELECTOR, "[data-plot=time]")
    marks = plot.find_elements(By.CSS_SELECTOR, "svg [data-mark]")
    native = plot.find_element(By.CSS_SELECTOR, "li[data-group=native] button")
    native.click()
    assert native.get_attribute("aria-pressed") == "false"
    seen = [mark.get_attribute("data-mark") for mark in marks if mark.is_displayed()]
    assert "aten::mm" not in seen
    assert len(seen) == 5
    native.send_keys(Keys.ENTER)
    assert all(mark.is_displayed() for mark in marks)
    plot.find_element(By.CSS_SELECTOR, "input").send_keys("topk")
    bright = [mark for mark in marks if mark.value_of_css_property("opacity") == "1"]
    assert [mark.get_attribute("data-mark") for mark in bright] == ["aten::topk"]
    assert plot.find_element(By.CSS_SELECTOR, ".count").text == "1 of 8 marks"


def test_a_chart_is_one_stop_and_arrows_go_through_it(
    page_of: Pages, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    show(browser, page_of("good"), tmp_path)
    stage = browser.find_element(By.CSS_SELECTOR, "[data-plot=time] .stage")
    tip = browser.find_element(By.CSS_SELECTOR, ".tip")
    stage.send_keys(Keys.ARROW_RIGHT)
    assert tip.text.startswith("aten::mm\n52.0 % native")
    stage.send_keys(Keys.ARROW_DOWN)
    assert tip.text.startswith("day0::lightning_indexer")
    stage.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert tip.text.startswith("aten::nonzero"), "from the first to the last"
    stage.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def test_cards_are_sorted_by_a_list(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("large"), tmp_path, width=400)
    name = "gaps-that-nothing-closes-by-share"
    button = browser.find_element(By.CSS_SELECTOR, f"[data-rows={name}] th[data-name=calls] button")
    assert button.get_attribute("tabindex") == "-1"
    tools = browser.find_element(By.XPATH, f"//div[table[@data-rows='{name}']]/preceding-sibling::div[1]")
    Select(tools.find_element(By.TAG_NAME, "select")).select_by_visible_text("calls, up")
    wait(browser, lambda: shown(browser, name)[0][3] == "2")
    assert script(browser, "document.documentElement.scrollWidth") == 400


CONTRAST = """(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const ground = node => {
    for (let one = node; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some(one => one.nodeType === 3 && one.data.trim());
    if (!own || !node.checkVisibility() || node.closest('svg, script, style')) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(node.className + ': ' + node.textContent.trim().slice(0, 40));
  }
  return poor;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(scheme: str, page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("failing"), tmp_path, scheme=scheme)
    open_all(browser)
    assert script(browser, CONTRAST) == []


def test_a_script_that_is_not_ours_does_not_run(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    html = page_of("good").replace("</main>", "<script>document.title = 'taken'</script></main>")
    html = html.replace("</main>", "<img src=data:, onerror=\"document.title = 'taken'\"></main>")
    show(browser, html, tmp_path)
    assert browser.title == "Ready: toy-on-sim"
    said = browser.get_log("browser")  # type: ignore[no-untyped-call] # selenium's own, without types
    assert sum("Content Security Policy" in one["message"] for one in said) >= 2


def test_commands_are_copied(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("failing"), tmp_path)
    button = browser.find_element(By.CSS_SELECTOR, ".command .copy")
    button.click()
    wait(browser, lambda: button.text in ("Copied", "Press Ctrl+C"))


def test_paper_has_no_tools_and_all_that_is_folded(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, page_of("failing"), tmp_path, width=794)  # A4 at 96 dots an inch
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for name in (".tools", ".copy", "nav", "summary"):
            assert not any(one.is_displayed() for one in browser.find_elements(By.CSS_SELECTOR, name)), name
        table = "document.querySelector('[data-rows=every-case-worst-first]')"
        assert script(browser, f"{table}.checkVisibility() && {table}.offsetHeight > 0")
        assert script(browser, "document.documentElement.scrollWidth") == 794, "nothing is cut at the paper's edge"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen"})


def test_without_its_script_the_page_is_whole(page_of: Pages, browser: webdriver.Chrome, tmp_path: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, page_of("beside"), tmp_path)
        assert browser.find_elements(By.CSS_SELECTOR, "button, input, select, .tip") == []
        assert len(browser.find_elements(By.CSS_SELECTOR, "svg.chart")) == 7
        assert browser.find_element(By.CSS_SELECTOR, "[data-rows=gates]").get_attribute("role") == "table"
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
