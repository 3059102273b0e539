"""A real browser, headless: pages in it fail their test on any error in the console and any request to elsewhere.

with opened(browser, f"http://127.0.0.1:{port}/") as page:
    page.locator("[data-test=thumb]").first.click()
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
    # and nothing that a browser would ask the network for by itself
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-quic",
]  # fmt: skip
SIZE = {"width": 1366, "height": 768}
PATIENCE = 30_000  # milliseconds: machines are noisy


def executable() -> str | None:
    """Where the browser is: DUALFORM_CHROMIUM, or on the path."""
    return os.environ.get("DUALFORM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launched() -> Iterator[Browser]:
    path = executable()
    if path is None and "CI" not in os.environ:
        pytest.skip("needs Chromium: apt-get install chromium, or name one in DUALFORM_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, dark: bool = False, size: dict[str, int] | None = None) -> Iterator[Page]:
    """A page in a profile of its own. What went wrong in it, seen or not, is an error in the end."""
    context = browser.new_context(viewport=size or SIZE, color_scheme="dark" if dark else "light")  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    faults: list[str] = []
    page.on(
        "console", lambda said: faults.append(f"console: {said.text}") if said.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("request", lambda request: None if _stays_here(request, url) else faults.append(f"request: {request.url}"))
    page.on(
        "requestfailed", lambda request: None if _was_given_up(request) else faults.append(f"failed: {request.url}")
    )
    page.goto(url)
    yield page
    context.close()
    assert not faults


def _stays_here(request: Request, url: str) -> bool:
    asked, own = urlsplit(request.url), urlsplit(url)
    return asked.scheme in ("data", "blob") or (asked.scheme, asked.netloc) == (own.scheme, own.netloc)


def _was_given_up(request: Request) -> bool:
    """By the page itself: it had asked something newer."""
    return request.failure == "net::ERR_ABORTED"


def part(page: Page, name: str, **data: object) -> Locator:
    """The parts of the page that tests know: `part(page, "thumb", index=3)`."""
    return page.locator("".join([f'[data-test="{name}"]', *(f'[data-{key}="{value}"]' for key, value in data.items())]))
