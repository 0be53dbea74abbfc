import pytest
import torch

from bench import kills as bench

ENDED = {
    "model": {"w": torch.tensor([1.0, 2.0])},
    "counts": {"updates": 3},
    "random": [{"host": torch.zeros(2)}],
}


@pytest.mark.parametrize(
    ("other", "names"),
    [
        ({"model": {"w": torch.tensor([1.0, 2.0000002])}}, ["model.w"]),
        ({"model": {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}}, ["model.w"]),
        ({"model": {"w": torch.tensor([[1.0, 2.0]])}}, ["model.w"]),
        ({"model": {}}, ["model"]),
        ({"counts": {"updates": 4}}, ["counts.updates"]),
        ({"counts": {"updates": 3.0}}, ["counts.updates"]),
        ({"random": []}, ["random"]),
        ({"random": [{"host": torch.tensor([0.0, -0.0])}]}, ["random.0.host"]),
    ],
)
def test_the_comparison_names_what_is_not_the_same_bit_for_bit(other, names):
    same = {
        "model": {"w": torch.tensor([1.0, 2.0])},
        "counts": {"updates": 3},
        "random": [{"host": torch.zeros(2)}],
    }
    assert bench.different(ENDED, same) == []
    assert bench.different(ENDED, {**same, **other}) == names
    nan = torch.tensor([float("nan")])
    assert bench.different({"w": nan}, {"w": nan.clone()}) == []


def test_the_summary_counts_runs_that_differ():
    kill = {"kind": "step", "micro_batches": 4, "checkpoint_step": 3, "half_written": True}
    rows = [
        {"whole_s": 1.0, "control": ["model.w"]},
        {
            "number": 1,
            "kills": [kill, {**kill, "kind": "time", "checkpoint_step": 0, "half_written": False}],
            "different": [],
        },
        {"number": 0, "kills": [kill], "different": ["model.w"]},
        {"whole_s": 2.0, "control": []},
    ]
    result = bench.summary(rows)
    assert (result["runs"], result["bitwise_equal"], result["kills"]) == (2, 1, 3)
    assert result["kills_by_kind"] == {"step": 2, "time": 1, "writing": 0}
    assert (
        result["kills_while_a_checkpoint_was_written"] == 2
        and result["kills_before_the_first_checkpoint"] == 1
    )
    assert result["controls_seen_to_differ"] == "1 of 2", (
        "a control that does not differ makes the bench fail"
    )


@pytest.mark.heavy
def test_a_killed_training_ends_as_one_that_was_not_and_the_control_does_not():
    result = bench.summary(bench.in_workers(runs=1, workers=1, seed=1))
    assert (result["runs"], result["bitwise_equal"]) == (1, 1) and result["kills"] >= 1
    assert result["controls_seen_to_differ"] == "1 of 1"
