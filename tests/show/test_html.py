"""The page, as text. How it looks is the business of tests/browser."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from brimful.show.html import render_page
from brimful.values import Estimate, PlannedSetting, Source
from tests.show import pieces, records, run_records

EVERY = records.ALL | run_records.ALL

# Elements and attributes by which a page makes a browser fetch something.
_FETCHING = {"src", "srcset", "data", "poster", "background", "action", "formaction", "manifest", "ping"}
_FETCHING_TAGS = {"link", "img", "iframe", "object", "embed", "audio", "video", "source", "base", "image", "use", "feimage"}


class Reader(HTMLParser):
    """What a browser's parser would find: elements, attributes, text, and how deep the nesting is at the end."""

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
        found = [tag for tag, _ in self.tags if tag in _FETCHING_TAGS]
        return found + [f"{tag} {name}" for tag, attrs in self.tags for name in attrs if name in _FETCHING]


def words(page: str) -> str:
    return re.sub(r"\s+", " ", Reader(page).text)


@pytest.mark.parametrize("name", EVERY)
def test_every_kind_of_record_gives_a_whole_page_that_fetches_nothing(name: str) -> None:
    page = render_page(EVERY[name]())
    read = Reader(page)
    assert not read.open
    assert not read.misnested
    assert read.fetches() == []
    assert "@import" not in page
    assert not re.search(r"url\((?!#clip-)", page)
    assert len(page.encode()) < 500_000
    assert [tag for tag, _ in read.tags].count("h1") == 1


@pytest.mark.parametrize("broken", ['<img src="https://example.org/x.png">', '<link rel="stylesheet" href="x.css">', "<div>"])
def test_the_reader_would_notice_a_page_that_fetches_or_is_not_whole(broken: str) -> None:
    read = Reader(render_page(records.empty_record()).replace("</main>", broken + "</main>"))
    assert read.fetches() or read.open or read.misnested


def test_what_comes_from_outside_is_text_and_never_markup() -> None:
    page = render_page(records.hostile_record())
    scripts = re.findall(r"<script", page)
    assert len(scripts) == 1  # our own
    assert "alert('x')" not in re.sub(r"&lt;script&gt;alert\((&#39;|')x(&#39;|')\)", "", page)
    assert words(page).count("<script>alert('x')</script>") > 20


def test_a_note_becomes_a_link_only_if_it_is_an_address_of_the_web() -> None:
    card = replace(pieces.gpu(), total_bytes=Estimate(2**34, Source.DATASHEET, note="javascript:alert(1)"))
    record = records.predict_record(card=card)
    links = [attrs["href"] or "" for tag, attrs in Reader(render_page(record)).tags if tag == "a"]
    assert links
    assert all(link.startswith("https://") for link in links)


def test_a_finished_tune_shows_the_command_the_curves_and_what_changed() -> None:
    text = words(render_page(records.tune_on_cpu()))
    assert "--batch-size 48 --workers 2" in text
    assert "218 samples/s measured" in text and "308 samples/s measured" in text and "1.41 ×" in text
    assert "Run in a trial before it was named. 12 trials, none out of memory." in text
    assert "budget 13.7 GiB" in text and "48 chosen" in text and "600 largest" in text and "64 as it was" in text
    assert "the smallest within 3 % of the fastest" in text


def test_each_chart_is_there_twice_with_clip_paths_of_its_own() -> None:
    page = render_page(records.tune_on_cpu())
    assert page.count("<svg") == 4
    identifiers = re.findall(r'id="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))


def test_parts_that_a_record_lacks_are_left_out() -> None:
    text = words(render_page(records.tune_on_card()))
    assert "Speed" not in text and "Before and after" not in text and "Memory" in text
    text = words(render_page(records.empty_record()))
    assert "Trials" not in text and "Memory" not in text and "The machine" not in text


def test_a_prediction_says_where_each_number_comes_from() -> None:
    text = words(render_page(records.predict_record()))
    assert "14.7 GiB predicted 14.5 to 15.2 GiB" in text
    assert "480 MiB assumed" in text and "39.4 GiB datasheet" in text
    assert "test not seen: no trial reached it" in text


def test_a_prediction_that_does_not_fit_says_so_first() -> None:
    page = render_page(records.predict_record(1600, pieces.gpu()))
    assert '<h1 class="bad">Batch size 1,600 does not fit' in page


def test_findings_say_what_was_seen_what_it_means_and_what_to_do() -> None:
    text = words(render_page(records.audit_record()))
    for finding in records.audit().findings:
        assert f"{finding.code} {finding.problem} {finding.explanation} Do: {finding.suggestion}" in text
    assert "No findings" in words(render_page(records.clean_audit_record()))


def test_a_record_that_was_cut_off_says_so_and_shows_what_is_there() -> None:
    text = words(render_page(records.torn_record()))
    assert "cut off in the middle of a line" in text and "batch_size 64" in text
    finished = replace(records.tune_on_cpu(), closed=None)
    assert "The record has no end" in words(render_page(finished))
    assert "The record has no end" not in words(render_page(records.tune_on_cpu()))


def test_a_script_that_failed_by_itself_is_shown_with_its_own_traceback() -> None:
    text = words(render_page(records.failed_record()))
    assert "No result: in trial 1, the script failed: RuntimeError: mat1 and mat2" in text
    assert 'File "examples/captcha/train.py", line 77, in main' in text


def test_an_absent_number_is_a_dash_and_never_nought() -> None:
    effective = replace(records.audit().effective, loader_batch_size=None, samples_per_step=None)
    record = replace(records.audit_record(), audit=replace(records.audit(), effective=effective, loading_share=None))
    text = words(render_page(record))
    assert "samples in a batch of the loader –" in text and "of it waiting for data –" in text


def test_the_policy_in_the_page_allows_its_own_script_and_nothing_else() -> None:
    page = render_page(records.tune_on_cpu())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy and "default-src &#39;none&#39;" in policy.group(1) and "unsafe-eval" not in policy.group(1)
    assert "script-src &#39;sha256-" in policy.group(1)


def test_a_setting_that_was_turned_off_reads_no() -> None:
    plan = replace(pieces.plan(), settings=(PlannedSetting("pin_memory", True, False, "slower", Source.MEASURED),))
    assert "pin_memory yes no slower measured" in words(render_page(replace(records.tune_on_cpu(), plan=plan)))


def test_the_page_is_made_without_importing_torch() -> None:
    code = (
        "import sys; from tests.show import pieces, records; from brimful.show.html import render_page; "
        "render_page(records.tune_on_cpu()); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
