"""The bench of what finds batch sizes: a small job on an imaginary card, and the table."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.peers import card, cell, drivers
from bench.peers.__main__ import Kept
from bench.peers.jobs import JOBS, Job, Losing
from bench.peers.table import BRIMFUL, PEERS, table


def small(epoch=None, start=64):
    def sample(source):
        return {"rows": torch.zeros(256, 256)}

    def loss(network, rows):
        return network(rows).mean()

    return Job(
        lambda: Losing(nn.Linear(256, 4096), loss), sample, "512MiB", epoch=epoch, start=start
    )


def test_the_true_largest_size_fits_and_the_next_one_does_not():
    true = card.true_largest(small())
    largest = true["largest"]
    peaks = [card.peak_of(small(), size) for size in (largest, largest + 1)]
    assert largest > 1 and peaks == [true["peak_reserved_bytes"], None]


def test_a_larger_size_that_fits_beyond_one_that_does_not_is_the_largest(monkeypatch):
    sizes = {*range(1, 21), 24, 25}
    monkeypatch.setattr(card, "peak_of", lambda job, size, seeds=1: 5 if size in sizes else None)
    true = card.true_largest(small())
    assert true["largest"] == 25
    assert set(true["smaller_that_did_not"]) <= {21, 22, 23}


def test_of_uneven_batches_every_epoch_must_fit(monkeypatch):
    def peak_of(job, size, seeds=1):
        return 5 if size <= (20 if seeds == 1 else 17) else None

    monkeypatch.setattr(card, "peak_of", peak_of)
    assert card.true_largest(small(epoch=100))["largest"] == 17


def test_a_peer_meets_real_errors_and_its_sizes_are_counted():
    pytest.importorskip("accelerate")
    row = cell.result("accelerate", small(), 1, None)
    assert row["ran"] and row["named"] < 64
    assert row["out_of_memory_errors"] == row["trials"] - 1 > 0


def test_what_a_peer_cannot_do_is_said_in_the_words_of_its_error():
    pytest.importorskip("accelerate")

    def sample(source):
        raise OSError("no data\nmore words")

    row = cell.result("accelerate", replace(small(), sample=sample), 1, None)
    assert row["error"] == "OSError: no data" and "named" not in row


def test_a_prediction_is_asked_until_its_largest_size_is_known():
    job = small()
    row = cell.predicted(lambda _, size: size * card.room("512MiB") // 100, job, 50, None)
    assert row["named"] == 100
    assert row["predicted_bytes_of_true_largest"] == card.room("512MiB") // 2
    assert cell.predicted(lambda _, size: 5, job, 50, None)["named"] is None
    assert cell.predicted(lambda _, size: size, job, 50, 20)["named"] == 20


def test_a_cell_that_is_kept_is_not_run_again(tmp_path):
    kept = Kept(tmp_path, {})
    kept.add("gpt2", {"peer": "toma", "named": 4})
    again = Kept(tmp_path, {})
    assert again.lacks("gpt2", ["toma", "accelerate"]) == ["accelerate"]
    assert again.lacks("gpt2", ["toma"], 20) == ["toma"]
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["rows"] == [{"job": "gpt2", "peer": "toma", "named": 4}]


def test_the_table_shows_what_was_run_and_leaves_the_rest_empty():
    row = {"named": 50, "fits": True, "ran": True, "trials": 3, "out_of_memory_errors": 2}
    row |= {"seconds": 1.5}
    true = {"peer": "true", "largest": 100, "peak_reserved_bytes": 1000}
    shown = table(
        [
            {"job": "vit", **true},
            {"job": "gpt2", **true},
            {"job": "vit", "peer": "toma", **row},
            {"job": "vit", "peer": "toma", **row, "named": 30, "ran": False, "most": 20},
            {"job": "vit", "peer": "accelerate", "error": "RuntimeError: no", "seconds": 0.1},
        ]
    )
    assert "| vit | 100 | none | 50 (50 %) |" in shown
    assert "| gpt2 | 100 |  |  |" in shown
    assert shown.endswith("| accelerate | vit | RuntimeError: no |")
    assert (
        "| toma | 50 % (1 of 1 jobs) | 0 of 1 | 1 of 1 | 3 | 2 | 1.5 | no: 30 of 20, not run |"
        in shown
    )


def test_every_peer_has_a_driver():
    assert {*drivers.FINDERS, *drivers.PREDICTORS, *BRIMFUL, "true"} == set(PEERS)
    assert set(drivers.MODULES) == {*drivers.FINDERS, *drivers.PREDICTORS}
    assert {"captcha", "chatlm", "ood_dpo"} < set(JOBS)
