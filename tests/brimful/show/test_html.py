"""The page, as text. How it looks is the business of tests/browser."""

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest

from brimful.show.html import render_page
from brimful.values import Estimate, Source
from tests.brimful.show import product

# Elements and attributes by which a page makes a browser fetch something.
_FETCHING = {
    "src",
    "srcset",
    "data",
    "poster",
    "background",
    "action",
    "formaction",
    "manifest",
    "ping",
}
_FETCHING_TAGS = {
    "link",
    "img",
    "iframe",
    "object",
    "embed",
    "audio",
    "video",
    "source",
    "base",
    "image",
    "use",
    "feimage",
}


class Reader(HTMLParser):
    """What a browser's parser would find: elements, attributes, text, and how deep the nesting is
    at the end.
    """

    VOID = ("meta", "br", "hr", "img", "input", "link", "base", "wbr", "source", "embed")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.misnested: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.misnested.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data

    def fetches(self) -> list[str]:
        return [tag for tag, _ in self.tags if tag in _FETCHING_TAGS] + [
            f"{tag} {name}" for tag, attrs in self.tags for name in attrs if name in _FETCHING
        ]


@cache
def page_of(name: str) -> str:
    return render_page(product.ALL[name]())


def words(page: str) -> str:
    return re.sub(r"\s+", " ", Reader(page).text)


@pytest.mark.parametrize("name", product.ALL)
def test_every_kind_of_record_gives_a_whole_page_that_fetches_nothing(name: str) -> None:
    page = page_of(name)
    read = Reader(page)
    assert read.open == read.misnested == read.fetches() == []
    assert not re.search(r"@import|url\((?!#clip-)", page)
    assert len(page.encode()) < 500_000
    assert [tag for tag, _ in read.tags].count("h1") == 1


@pytest.mark.parametrize("name", ["hostile", "hostile-run"])
def test_what_comes_from_outside_is_text_and_never_markup(name: str) -> None:
    page = page_of(name)
    assert len(re.findall(r"<script", page)) == 1, "our own"
    assert "alert('x')" not in re.sub(r"&lt;script&gt;alert\((&#39;|')x(&#39;|')\)", "", page)
    assert words(page).count("<script>alert('x')</script>") > 10


def test_a_note_becomes_a_link_only_if_it_is_an_address_of_the_web() -> None:
    record = product.predict_fits()
    card = replace(
        record.prediction.gpu,
        total_bytes=Estimate(2**34, Source.DATASHEET, note="javascript:alert(1)"),
    )
    page = render_page(replace(record, prediction=replace(record.prediction, gpu=card)))
    links = [attrs["href"] or "" for tag, attrs in Reader(page).tags if tag == "a"]
    assert links and all(link.startswith("https://") for link in links)


def test_each_chart_is_there_twice_with_clip_paths_of_its_own() -> None:
    page = page_of("tune-cpu")
    assert page.count("<svg") == 4 and "Peak host memory against batch size" in page
    identifiers = re.findall(r'id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))


def test_findings_say_what_was_seen_what_it_means_and_what_to_do() -> None:
    record = product.audit_record()
    text = words(render_page(record))
    for finding in record.audit.findings:
        assert f"{finding.problem} {finding.explanation} Do: {finding.suggestion}" in text


def test_a_record_without_an_end_says_so_and_shows_what_is_there() -> None:
    assert 'File "train.py", line 77, in main' in words(page_of("script-raised"))
    text = words(page_of("torn"))
    assert "cut off in the middle of a line" in text and "batch_size 128" in text
    assert "The record has no end" in words(
        render_page(replace(product.tune_on_cpu(), closed=None))
    )
    assert "The record has no end" not in words(page_of("tune-cpu"))


def test_the_policy_in_the_page_allows_its_own_script_and_nothing_else() -> None:
    page = page_of("tune-cpu")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert "default-src &#39;none&#39;" in policy and "script-src &#39;sha256-" in policy
    assert "unsafe-eval" not in policy


def test_a_notebook_shows_a_record_as_a_page_in_a_frame_of_its_own() -> None:
    reader = Reader(product.hostile()._repr_html_())
    ((tag, attributes),) = reader.tags
    page = attributes["srcdoc"]
    assert tag == "iframe" and "src" not in attributes and page is not None
    assert page.startswith("<!doctype html>") and not Reader(page).fetches()
