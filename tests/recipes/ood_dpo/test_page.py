"""The page of a sweep: what its first lines say, and the memory of its phases."""

import html
import re
import time
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from recipes.ood_dpo import sweep
from recipes.ood_dpo.experiments import TRIVIAL, Results, experiments, table
from recipes.ood_dpo.page import sweep_page
from recipes.ood_dpo.sweep import watched
from tests.recipes.ood_dpo.test_experiments import done, trained

WORDS = ("sweep", "--datasets", "my data.csv", "--seeds", "2")


def page_of(folder: Path, *, left: int = 0, failed: bool = False, **memory: float | None) -> str:
    """Of two seeds on two data sets, each tested on both."""
    plan, results = experiments(["a", "b"], ["chemnet"], ["dpo"], 2), Results(folder)
    for one in plan[: len(plan) - left]:
        other = "b" if one.dataset == "a" else "a"
        result = done(one, 0.6, other)
        if one.method != TRIVIAL:
            result = replace(trained(one, 0.8), tests=done(one, 0.8, other).tests)
            result = replace(result, memory={**result.memory, **memory})
        results.write(replace(result, error="no memory") if failed and one == plan[0] else result)
    return sweep_page(table(plan, results), words=WORDS)


def text_of(page: str) -> str:
    body = re.sub(r"<svg.*?</svg>|<script.*", "", page.split("<body>")[1], flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_the_page_is_green_once_all_is_done_and_names_the_peak_and_its_phase(tmp_path):
    page = page_of(tmp_path)
    assert '<h1 class="good">' in page
    assert "8 of 8 experiments done; highest peak 1.50 GiB of the card, in training" in page
    assert '<h1 class="note">' in page_of(tmp_path / "left", left=1)
    assert '<h1 class="bad">' in page_of(tmp_path / "failed", failed=True)


def test_the_command_on_the_page_can_be_pasted(tmp_path):
    shown = html.unescape(re.sub(r"<[^>]+>", "", page_of(tmp_path)))
    assert "python -m recipes.ood_dpo sweep --datasets 'my data.csv' --seeds 2" in shown


def test_peaks_by_phase_say_what_was_cached_and_that_an_ensemble_shares_them(tmp_path):
    shown = text_of(page_of(tmp_path))
    assert "dpo, chemnet 4 1.50 s 500 ms 700 samples/s cached 1.50 GiB 512 MiB" in shown
    assert "the ensemble of 30" in shown and "share one peak" in shown
    encoded = text_of(page_of(tmp_path / "other", peak_gpu_memory_encoding_gb=2.0))
    assert "2.00 GiB 1.50 GiB 512 MiB" in encoded and "2.00 GiB of the card, in encoding" in encoded


def test_an_auroc_on_another_data_set_stands_beside_the_trivial_one(tmp_path):
    assert text_of(page_of(tmp_path)).count("0.8000 ± 0.0000 (0.6000)") == 4


def test_the_occupancy_of_each_start_is_kept_and_drawn(tmp_path, monkeypatch):
    file, looks, memory = tmp_path / "occupancy.json", [], psutil.virtual_memory
    monkeypatch.setattr(psutil, "virtual_memory", lambda: looks.append(1) or memory())
    for start in (1, 2):
        with watched(torch.device("cpu"), file, every_s=0.01) as starts:
            while len(looks) < 4 * start:
                time.sleep(0.01)
        assert len(starts) == start and len(starts[-1]["points"]) > 1
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "is_imaginary", lambda: True)
        with watched(torch.device("cpu"), file) as starts:
            pass
    assert len(starts) == 2, "an imaginary card is neither full nor busy"
    at_s, used, busy = starts[1]["points"][-1]
    assert at_s >= 0 and 0 < used < 1 and 0 <= busy <= 1
    on_card = {"device": "cuda:0", "points": [(0, 0.1, None), (5, 0.3, None)]}
    frame = table([], Results(tmp_path))
    page = sweep_page(frame, [starts[0], on_card])
    assert "Memory in use: 20 % on average, 30 % at most." in page
    assert "The machine while the sweep ran (start 1)" in page and page.count("<svg") == 4
