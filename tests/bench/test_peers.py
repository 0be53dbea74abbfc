"""The peers, on a small training whose memory can be counted by hand."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bench import accuracy, peers  # noqa: E402

MIB = 1 << 20
ROW = {"input_size": "100", "output_size": "10", "depth": "2", "architecture": "uniform"}
WEIGHTS = 4 * (2 * (100 * 100 + 100) + 100 * 10 + 10)


def test_fake_tensor_arithmetic_adds_weights_four_times_and_every_leafs_output():
    activations = 4 * 64 * (4 * 100 + 10)  # two linear layers, two relus, one linear layer
    batch = 4 * 64 * 100 + 8 * 64
    assert peers.naive(peers.mlp_job(ROW), 64) == 4 * WEIGHTS + activations + batch


def test_pytorchs_tracker_sees_two_steps_with_adams_states():
    peak = peers.mem_tracker(peers.mlp_job(ROW), 64)
    assert 4 * WEIGHTS <= peak <= 8 * WEIGHTS
    assert peers.mem_tracker(peers.mlp_job(ROW), 4096) > peak + 3000 * 4 * 100


def test_a_copy_of_fake_tensors_shares_what_the_model_shares_and_holds_no_data():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False), nn.BatchNorm1d(10))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    with peers.FakeTensorMode():
        copied = peers.faked(model)
        assert copied[1].weight is copied[0].weight and not copied[0].weight.requires_grad
        assert all("Fake" in type(tensor).__name__ for tensor in copied.buffers())
    assert "Fake" not in type(model[2].running_mean).__name__


def test_a_peer_that_fails_says_so_and_the_others_answer(monkeypatch):
    monkeypatch.setitem(peers.PEERS, "mem_tracker", Mock(side_effect=RuntimeError("cannot")))
    said = peers.ask(peers.mlp_job(ROW), 8)
    assert (
        said["mem_tracker"].nbytes is None and said["mem_tracker"].error == "RuntimeError: cannot"
    )
    assert said["naive"].nbytes and said["naive"].seconds > 0


def answers() -> list[peers.Answer]:
    """The card shows 1000 MiB more than "naive" says on rows to fit on, and 1100 MiB more on those
    that judge.
    """
    made = []
    for fitted in (True, False):
        for size in (8, 16):
            said = {
                "naive": peers.Said(size * 10 * MIB, 0.5),
                "mem_tracker": peers.Said(None, 9.0, "RuntimeError: cannot"),
            }
            measured = (size * 20 + (1000 if fitted else 1100)) * MIB
            made.append(peers.Answer(measured, said, fitted, "a", size))
    return made


def test_each_peer_gets_a_constant_of_its_own_from_the_rows_to_fit_on_and_is_judged_on_the_others():
    figures = peers.figures(answers())
    assert figures.keys() == {"naive"}, "a peer without an answer has no figures"
    assert figures["naive"]["context_bytes"] == 1120 * MIB and figures["naive"]["rows"] == 2
    assert figures["naive"]["slope_median_absolute"] == pytest.approx(0.5)
    assert figures["naive"]["median_signed"] < 0
    shown = "\n".join(accuracy.table({"brimful": {"rows": 9}, **figures}))
    assert "1120 MiB" in shown and "brimful" in shown and "50.00%" in shown
