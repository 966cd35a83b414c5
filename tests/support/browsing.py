"""Chromium without a screen, for tests that click through pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.remote.webdriver import WebDriver


@contextmanager
def open_browser(profile: Path) -> Iterator[WebDriver]:
    """A browser that keeps its profile in that folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for option in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "disable-dev-shm-usage",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "window-size=1360,900",
        f"user-data-dir={profile}",
    ):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as found:
        yield found
