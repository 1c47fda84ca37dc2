"""The page in a real browser, offline. Debian: `apt-get install chromium chromium-driver`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

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
