"""What `doctor --calibrate` runs on a card, with the imaginary card in the real one's place."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from brimful_inside import calibration, imaginary  # noqa: E402
from brimful_inside.wire import Card  # noqa: E402
from tests.brimful_inside.imaginary.conftest import entered  # noqa: E402

GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture
def card() -> Iterator[imaginary.ImaginaryGpu]:
    with entered(Card("a card", 24 * GIB, 700 * MIB, [8, 6], 82)) as gpu:
        yield gpu


def test_each_stage_shows_what_is_outside_of_the_allocator(card, monkeypatch):
    steps = iter([400, 410, 500, 600, 900])
    monkeypatch.setattr(
        torch.cuda,
        "mem_get_info",
        lambda: (24 * GIB - next(steps) * MIB - torch.cuda.memory_reserved(), 24 * GIB),
    )
    outside = calibration.contexts()
    assert tuple(outside) == calibration.STAGES
    assert [n // MIB for n in outside.values()] == [400, 410, 500, 600, 900]
    assert torch.cuda.memory_reserved() > 0, "what PyTorch itself holds is not context"


def test_rates_are_amounts_over_median_times(card, monkeypatch):
    monkeypatch.setattr(calibration, "seconds_of", lambda work: work() is None or 0.001)
    before = torch.backends.cuda.matmul.allow_tf32
    rates = calibration.rates()
    assert torch.backends.cuda.matmul.allow_tf32 == before and rates["dispatch_s"] > 0
    assert rates == {
        **rates,
        "bandwidth_bytes_per_s": 2 * calibration.COPIED_BYTES / 0.001,
        "link_bytes_per_s": calibration.SENT_BYTES / 0.001,
        **{f"{kind}_flops": 2 * 8192**3 / 0.001 for kind in ("fp32", "tf32", "fp16", "bf16")},
    }


def test_a_card_without_tf32_is_not_asked_for_it(monkeypatch):
    monkeypatch.setattr(calibration, "seconds_of", lambda work: 0.001)
    with entered(Card("a card", 6 * GIB, 700 * MIB, [7, 5], 40)):
        rates = calibration._products()
    assert "tf32_flops" not in rates and rates["fp16_flops"] == 2 * 4096**3 / 0.001


def test_where_no_time_passes_there_is_no_rate(card):
    assert calibration.seconds_of(lambda: None) is None
    assert calibration.rates()["bandwidth_bytes_per_s"] is None


def test_the_last_line_is_the_answer(card, capsys):
    assert calibration.main(["--no-rates"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    answer = json.loads(line.removeprefix("BRIMFUL"))
    assert answer["card"] == {
        "name": "a card",
        "total_bytes": 24 * GIB,
        "capability": [8, 6],
        "multiprocessors": 82,
    }
    assert set(answer["outside_bytes"]) == set(calibration.STAGES) and answer["rates"] == {}
    assert answer["versions"]["torch"] == torch.__version__


@pytest.mark.skipif(torch.cuda.is_available(), reason="a card is here")
def test_without_a_card_it_says_so(capsys):
    assert calibration.main([]) == 4
    assert "sees no CUDA card" in capsys.readouterr().out
