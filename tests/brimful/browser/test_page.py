"""The page in a real browser: light and dark, wide and narrow, with scripts and without. Run by
`make test-browser`.

Each thing that is held is also broken on purpose once, to show that it would be noticed.
"""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brimful.show.html import render_page
from tests.brimful.browser import chromium
from tests.brimful.browser.chromium import Chromium, Page
from tests.brimful.show import product

pytestmark = pytest.mark.browser

COMMAND = "my-train --batch-size 256"  # of tune-cpu

LOOKING = (Path(__file__).parent / "looking.js").read_text(encoding="utf-8")
LOOKS = [(width, dark) for width in (1200, 400) for dark in (False, True)]
# : A folder for screenshots, to look at the pages oneself: BRIMFUL_SCREENSHOTS=/tmp/pages make
# test-browser
KEEP = os.environ.get("BRIMFUL_SCREENSHOTS")
#: The smallest contrast of a line or dot that means something (WCAG 2.2, 1.4.11).
GRAPHICS = 3.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    binary = chromium.find()
    if binary is None:
        pytest.fail(
            "There is no Chromium: `make test-browser` installs one, BRIMFUL_CHROMIUM names one."
        )
    with Chromium(binary) as running:
        yield running


@pytest.fixture
def opened(browser: Chromium, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens the page of a record by its name in `product.ALL`; `change` edits the text first."""
    pages: list[Page] = []

    def open_page(name: str, change: Callable[[str], str] = str, **look: Any) -> Page:
        path = tmp_path / f"{name}-{len(pages)}.html"
        path.write_text(change(page_of(name)), encoding="utf-8")
        pages.append(browser.open(path, **look))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()


@functools.cache
def page_of(name: str) -> str:
    return render_page(product.ALL[name]())


def look(page: Page, what: str) -> Any:
    return page.evaluate(f"{LOOKING}.{what}()")


def with_style(style: str) -> Callable[[str], str]:
    return lambda text: text.replace("</style>", style + "</style>", 1)


@pytest.mark.parametrize("name", product.ALL)
@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_a_page_is_quiet_offline_readable_and_within_its_window(
    opened: Callable[..., Page], name: str, width: int, dark: bool
) -> None:
    page = opened(name, width=width, dark=dark)
    if KEEP:
        page.screenshot(Path(KEEP) / f"{name}-{width}-{'dark' if dark else 'light'}.png")
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.complaints() == []
    assert len(page.requests()) == 1, "the page asks for something besides itself"
    assert look(page, "weak") == []
    assert look(page, "overflow") == {"page": 0, "out": []}
    assert len(look(page, "texts")) > 10


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("texts", with_style(":root { --muted: #a9a9a9 !important; }")),
        ("ground", with_style("body { background: #777 !important; }")),
        ("chart labels", with_style('.chart [fill="#a63d2a"] { fill: #e8d5d0 !important; }')),
    ],
)
def test_weak_contrast_is_noticed(
    opened: Callable[..., Page], what: str, change: Callable[[str], str]
) -> None:
    assert look(opened("tune-cpu", change), "weak") != []


def test_a_request_and_a_complaint_are_noticed(opened: Callable[..., Page]) -> None:
    picture = '<img src="nowhere.png">'
    page = opened("audit", lambda text: text.replace("</main>", picture + "</main>"))
    assert page.complaints() != [], "the page's policy should have stopped the picture, aloud"
    without_policy = opened(
        "audit",
        lambda text: text.replace("http-equiv", "data-x", 1).replace(
            "</main>", picture + "</main>"
        ),
    )
    assert len(without_policy.requests()) == 2


def test_a_script_from_elsewhere_does_not_run(opened: Callable[..., Page]) -> None:
    evil = "<script>document.title = 'taken'</script>"
    page = opened("audit", lambda text: text.replace("</main>", evil + "</main>"))
    assert page.evaluate("document.title") != "taken"
    assert page.complaints() != []


def test_a_column_beyond_the_edge_of_a_phone_is_shown_to_be_there(
    opened: Callable[..., Page],
) -> None:
    assert look(opened("tune-cpu", width=390), "hidden") == []
    bare = opened("tune-cpu", with_style(".scroll { background: none; }"), width=390)
    assert look(bare, "hidden") != [], "some table is wider than the window"


@pytest.mark.parametrize(
    "change", [with_style("main { width: 700px; }"), with_style(".scroll { overflow: visible; }")]
)
def test_what_sticks_out_of_a_narrow_window_is_noticed(
    opened: Callable[..., Page], change: Callable[[str], str]
) -> None:
    assert look(opened("tune-cpu", change, width=400), "overflow")["page"] > 0


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_curves_are_seen(opened: Callable[..., Page], width: int, dark: bool) -> None:
    page = opened("tune-cpu", width=width, dark=dark)
    drawn = look(page, "charts")
    assert len(drawn) == 2
    for chart in drawn:
        assert chart["width"] > 250 and chart["height"] > 180 and chart["right"] <= width
    marks = [mark for mark in look(page, "marks") if mark["title"] or mark["width"] > 100]
    assert sum("measured" in mark["title"] for mark in marks) >= 3 + 8  # probes and speeds
    assert all(mark["width"] > 3 for mark in marks if mark["title"])
    curve = max(marks, key=lambda mark: mark["height"])
    assert curve["width"] > 200 and curve["height"] > 100
    for mark in marks:
        if mark["title"]:
            assert mark["ratio"] >= GRAPHICS, mark


def test_a_chart_that_is_hidden_or_empty_is_noticed(opened: Callable[..., Page]) -> None:
    assert (
        look(opened("tune-cpu", with_style(".chart { display: none !important; }")), "charts") == []
    )
    flat = look(opened("tune-cpu", with_style(".chart svg { height: 0 !important; }")), "charts")
    assert all(chart["height"] == 0 for chart in flat)


def test_the_dark_scheme_changes_the_paper_the_text_and_the_curves(
    opened: Callable[..., Page],
) -> None:
    page = opened("tune-cpu")

    def colours() -> list[Any]:
        body = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, "
            "getComputedStyle(document.body).color]"
        )
        return [*body, sorted({mark["stroke"] for mark in look(page, "marks") if mark["title"]})]

    light = colours()
    page.media("screen", True)
    assert all(one != other for one, other in zip(light, colours(), strict=True))
    paper = page.evaluate(
        f"(() => {{ const l = {LOOKING}; return l.luminance(l.ground(document.body)); }})()"
    )
    assert paper < 0.05
    page.media("screen", False)
    assert colours() == light


def test_on_paper_the_page_is_black_on_white_even_where_the_screen_is_dark(
    opened: Callable[..., Page],
) -> None:
    page = opened("tune-cpu", dark=True)
    page.media("print", True)
    assert page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    ) == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    assert page.evaluate("getComputedStyle(document.querySelector('button')).display") == "none"
    assert look(page, "weak") == []


def text_after_click(page: Page) -> str:
    """The next text of the button, however long that takes."""
    page.evaluate(
        "window.shown = new Promise((done) => { const b = document.querySelector('button');"
        " new MutationObserver(() => done(b.textContent)).observe(b, {childList: true, subtree: "
        "true}); }); 0"
    )
    page.click("button")
    return page.evaluate("window.shown")


FORBIDS = "navigator.clipboard.writeText = () => Promise.reject(new Error('forbidden'))"


@pytest.mark.parametrize("before", ["0", FORBIDS], ids=["with a clipboard", "without one"])
def test_the_button_copies_the_command_to_paste(opened: Callable[..., Page], before: str) -> None:
    page = opened("tune-cpu")
    page.browser.call(
        "Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"]
    )
    page.evaluate("navigator.clipboard.writeText('before')")
    assert page.evaluate("navigator.clipboard.readText()") == "before"
    page.evaluate(f"{before}; 0")
    assert text_after_click(page) == "Copied"
    assert page.evaluate("navigator.clipboard.readText()") == COMMAND
    assert page.complaints() == []


def test_without_scripts_everything_is_there_but_the_button(opened: Callable[..., Page]) -> None:
    page = opened("tune-cpu", scripts=False)
    assert page.evaluate("document.querySelector('button').checkVisibility()") is False
    assert page.evaluate("document.querySelector('#paste').textContent") == COMMAND
    assert page.evaluate("getComputedStyle(document.querySelector('#paste')).userSelect") == "all"
    assert len(look(page, "charts")) == 2
    assert page.complaints() == []
    assert opened("tune-cpu").evaluate("document.querySelector('button').checkVisibility()") is True


def test_the_charts_have_a_name_and_a_table_for_those_who_do_not_see_them(
    opened: Callable[..., Page],
) -> None:
    page = opened("tune-cpu")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if "role" in node
    ]
    assert ("image", "Peak host memory against batch size") in named
    assert ("image", "Samples per second against batch size") in named
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    headers = page.evaluate(
        "[...document.querySelectorAll('table')].every((t) => t.querySelector('th[scope=col]'))"
    )
    assert headers is True
