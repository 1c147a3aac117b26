"""Every page that is made here, looked at in Chromium, wide and as on a phone: the site, `inspect`'s and `compare`'s.

`looks.js` says what is wrong with a page. The folders with pages are those of `--pages`.
"""

from __future__ import annotations

import base64
import io
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

pytestmark = pytest.mark.browser

LOOKS = (Path(__file__).parent / "looks.js").read_text(encoding="utf-8")
WIDTHS = {"desktop": 1280, "phone": 390}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE = 120_000  # milliseconds, for a machine that has other things to do
# What the label of an axis speaks of -> the unit that it has to have.
UNITS = {"loss": "(nats)", "memory": "(MiB)", "offset:": "(tokens)", "distance": "(tokens)", "attention": "(%)"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each page in the folders given."""
    if "page" not in metafunc.fixturenames or "browser" not in metafunc.config.option.markexpr:
        return
    folders = metafunc.config.option.pages
    pages = [path for folder in folders for path in sorted(Path(folder).rglob("*.html")) if not _leads_on(path)]
    if not pages:
        raise pytest.UsageError(f"There is no page in {', '.join(folders)}. Make the site there (make docs) first.")
    metafunc.parametrize("page", pages, ids=["/".join(path.parts[-3:]) for path in pages])


def _leads_on(path: Path) -> bool:
    """Whether a page only sends its readers to another."""
    return 'http-equiv="refresh"' in path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def browser() -> Any:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert program, f"None of {', '.join(BROWSERS)} is installed. On Debian: apt-get install chromium."
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=FLAGS, timeout=PATIENCE)
        yield running
        running.close()


@pytest.fixture
def wrong() -> list[str]:
    """What the browser says of itself that goes wrong."""
    return []


@pytest.fixture
def tab(browser: Any, wrong: list[str]) -> Any:
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(PATIENCE)
    opened.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("requestfailed", lambda request: wrong.append(f"{request.url[:200]} cannot be loaded"))
    opened.on("request", lambda request: wrong.extend(_from_the_network(request.url)))
    yield opened
    opened.close()


def _from_the_network(url: str) -> list[str]:
    return [] if urlparse(url).scheme in ("file", "data", "blob") else [f"{url} is asked for, from the network"]


def faults_of_page(tab: Any) -> list[str]:
    return tab.evaluate(f"() => {{ {LOOKS}; return faultsOfPage(); }}")


def faults_of_picture(tab: Any, picture: str) -> list[str]:
    tab.set_content(picture[picture.index("<svg") :])
    return tab.evaluate(f"units => {{ {LOOKS}; return faultsOfPicture(units); }}", UNITS)


def pictures_of(tab: Any) -> dict[str, str]:
    """The pictures of a page that are SVG, by what they are called."""
    found = {}
    for source, called in tab.evaluate("() => [...document.images].map((image) => [image.src, image.alt])"):
        if source.startswith("data:image/svg+xml;base64,"):
            found[called] = base64.b64decode(source.partition(",")[2]).decode("utf-8")
        elif source.endswith(".svg"):
            found[called] = Path(unquote(urlparse(source).path)).read_text(encoding="utf-8")
    return found


def test_a_page_can_be_read_on_a_wide_screen_and_on_a_phone(page: Path, tab: Any, wrong: list[str]) -> None:
    tab.goto(page.resolve().as_uri())
    faults = {}
    for name, width in WIDTHS.items():
        tab.set_viewport_size({"width": width, "height": 900})
        faults[name] = faults_of_page(tab)
    pictures = pictures_of(tab)
    faults |= {called: faults_of_picture(tab, picture) for called, picture in pictures.items()}
    assert {name: said for name, said in faults.items() if said} == {}
    assert wrong == []


DOT = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('<div style="width: 3000px">wide</div>', "scrolls sideways"),
        ('<p>one</p><p style="margin-top: -2em">two</p>', '"one" lies on "two"'),
        ('<p style="width: 20px">unbreakable</p>', '"unbreakable" sticks out of its box'),
        ('<p style="width: 20px; overflow: hidden">unbreakable</p>', '"unbreakable" is cut off'),
        ('<img src="data:image/png;base64,AAAA" alt="a">', "is not shown"),
        (f'<img src="{DOT}">', "has no words for who cannot see it"),
        ('<img alt="a" width="50" src="data:image/svg+xml,%3Csvg xmlns=%22http://www.w3.org/2000/svg%22 '
         'width=%22100%22 height=%2210%22/%3E">', '"a" is shown too small'),
    ],
    ids=["wide", "overlap", "out", "cut", "missing", "words", "small"],
)  # fmt: skip
def test_a_fault_of_a_page_is_seen(content: str, fault: str, tab: Any) -> None:
    tab.set_content(f"<!doctype html><body>{content}</body>")
    tab.wait_for_load_state()
    assert any(fault in said for said in faults_of_page(tab))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"xlabel": "training step"}, "has no label"),
        ({"xlabel": "training step", "ylabel": "validation loss"}, '"validation loss" has no unit'),
        ({"xlabel": "training step", "ylabel": "gate", "title": "wide " * 40}, "is cut off"),
        ({"xlabel": "a", "ylabel": "b", "xticks": [0, 0.01, 0.02], "xlim": (0, 1)}, "lies on"),
        ({"xlabel": "training step", "ylabel": "validation loss (nats)"}, None),
    ],
    ids=["label", "unit", "cut", "overlap", "none"],
)
def test_a_fault_of_a_picture_is_seen(given: dict[str, Any], fault: str | None, tab: Any) -> None:
    from matplotlib.figure import Figure

    figure, drawn = Figure(), io.StringIO()
    figure.add_subplot().set(**given)
    figure.savefig(drawn, format="svg")
    said = faults_of_picture(tab, drawn.getvalue())
    assert said == [] if fault is None else any(fault in one for one in said)
