"""The documentation's site, as scripts/docs builds it: looked at in Chromium, without a server or a network."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import open_browser
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

import gpuloader
from gpuloader import collators, errors, metrics, transforms
from gpuloader.cli.app import COMMANDS
from gpuloader.recipe import preset_names

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("mkdocs"), reason="scripts/docs has not installed mkdocs")

ROOT = Path(__file__).resolve().parents[2]
LOADING = set(gpuloader.__all__) - {*errors.__all__, "__version__"}


def build(site: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = build(folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    with open_browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.mark.parametrize(
    ("page", "anchors"),
    [
        ("loading", [f"gpuloader.{name}" for name in LOADING]),
        ("transforms", [f"gpuloader.transforms.{name}" for name in transforms.__all__]),
        ("collators", [f"gpuloader.collators.{name}" for name in collators.__all__]),
        ("metrics", [f"gpuloader.metrics.{name}" for name in metrics.__all__]),
        ("errors", [f"gpuloader.errors.{name}" for name in errors.__all__]),
        ("presets", preset_names()),
        ("commands", [command.__name__ for command in COMMANDS]),
    ],
)
def test_the_reference_has_a_heading_for_each_name(site: Path, page: str, anchors: list[str]) -> None:
    there = re.findall(r'<h2 id="([^"]+)"', (site / "reference" / f"{page}.html").read_text())
    assert set(anchors) <= set(there)


def test_examples_of_docstrings_are_code(site: Path) -> None:
    html = (site / "reference/loading.html").read_text()
    assert "<blockquote>" not in html  # what Markdown makes of >>>
    assert html.count("Examples:") >= len(LOADING)


def test_a_notebook_is_a_page_with_its_outputs(site: Path) -> None:
    html = (site / "notebooks/recipes.html").read_text()
    assert html.count('src="data:image/jpeg;base64,') == 2
    assert '<td style="text-align: left">RandomErasing</td>' in html
    assert "(8, 3, 96, 96)" in html
    assert 'href="recipes.ipynb" download' in html
    assert (site / "notebooks/recipes.ipynb").is_file()
    assert 'href="notebooks/recipes.html"' in (site / "index.html").read_text()


def test_the_markdown_of_each_page_is_beside_it(site: Path) -> None:
    for listed in re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text()):
        assert (site / listed).read_text() == (ROOT / "docs" / listed).read_text()
        assert (site / listed).with_suffix(".html").is_file()


def test_no_page_is_wider_than_a_phone_or_lacks_a_picture(site: Path, browser: WebDriver) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    pages = sorted(set(site.rglob("*.html")) - {site / "404.html"})  # a server shows that, for any address
    found = {}
    for page in pages:
        browser.get(page.as_uri())
        found[page.name] = browser.execute_script(
            "return [document.body.parentElement.scrollWidth, [...document.images].filter(i => !i.naturalWidth).length]"
        )
    assert len(pages) > 40
    assert {name: values for name, values in found.items() if values != [390, 0]} == {}
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("page", ["index.html", "commands/pack.html"])
def test_search_works_on_a_page_that_is_opened_as_a_file(site: Path, browser: WebDriver, page: str) -> None:
    browser.get((site / page).as_uri())
    field = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    field.click()
    field.send_keys("quarantine")
    WebDriverWait(browser, 300).until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".md-search-result__link"))
    results = browser.find_elements(By.CSS_SELECTOR, ".md-search-result__link")
    assert any("troubleshooting.html" in str(each.get_attribute("href")) for each in results)


def test_dead_links_and_what_comes_from_elsewhere_fail_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for name in ("scripts", "gpuloader"):
        (tmp_path / name).symlink_to(ROOT / name)
    broken = {
        "[x](nothing.md)": "contains a link 'nothing.md'",
        "[x](data.md#nothing)": "does not contain an anchor '#nothing'",
        "[x](/data.md)": "contains an absolute link '/data.md'",
        "![x](https://example.com/x.png)": "index.html loads from elsewhere: <img",
        '<script src="//example.com/x.js"></script>': "index.html loads from elsewhere: <script",
    }
    (tmp_path / "docs/index.md").write_text("\n\n".join(["# Start", *broken]))
    (tmp_path / "docs/forgotten.md").write_text("# Forgotten")
    result = build(tmp_path / "site", tmp_path)
    assert result.returncode == 1
    for said in (*broken.values(), "forgotten.md"):
        assert said in result.stderr
