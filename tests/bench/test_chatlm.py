from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")
pytest.importorskip("sacrebleu")

from bench import chatlm as bench
from bench.chatlm_data import long_rows, tokenizer_in
from bench.chatlm_memory import HEADLINE, against, largest_that
from bench.chatlm_plain import fixed
from bench.chatlm_race import AtEpochs, Paused, race_of, run_race

FLAGS = ("--model", "tiny", "--device", "cpu", "--precision", "fp32", "--resume", "no", "--no-bleu", "--eval-share", "0.1")


def test_the_plain_loop_fills_every_text_up_to_one_length():
    samples = [(torch.tensor([5, 6, 1]), torch.tensor([7, 1])), (torch.tensor([8, 1]), torch.tensor([9, 9, 9, 1]))]
    prompts, mask, labels = fixed(samples, length=5, padding=0)
    assert prompts.tolist() == [[5, 6, 1, 0, 0], [8, 1, 0, 0, 0]] and mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    assert labels.tolist() == [[7, 1, -100, -100, -100], [9, 9, 9, 1, -100]]


def test_a_loop_that_cannot_be_stopped_makes_one_update_at_a_time():
    seen = []

    def loop(pause):
        while True:
            seen.append(len(seen))
            pause()

    paused = Paused(loop)
    assert seen == []
    for updates in (1, 2, 3):
        next(paused)
        assert len(seen) == updates
    paused.end()
    assert len(seen) == 3


@pytest.mark.parametrize(("loop", "error"), [(lambda pause: 1 / 0, ZeroDivisionError), (lambda pause: None, EOFError)])
def test_an_error_of_such_a_loop_comes_out_of_its_update(loop, error):
    with pytest.raises(error):
        next(Paused(loop))


def test_the_other_side_has_its_turn_before_each_epoch_of_updates_that_train():
    model, other, turns = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1), []

    def optimizer_of(module: torch.nn.Module) -> torch.optim.Optimizer:
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return torch.optim.SGD(module.parameters(), lr=0.1)

    own, its = optimizer_of(model), optimizer_of(other)
    at_epochs = AtEpochs(model, 3, lambda: turns.append(at_epochs.updates))
    own.step()  # as an engine does that allocates its state
    at_epochs.at_loss()
    at_epochs.at_loss()  # of a dry run
    for _ in range(7):
        at_epochs.at_loss()
        at_epochs.at_loss()  # of a second micro-batch
        own.step()
        its.step()
    at_epochs.close()
    own.step()
    assert turns == [0, 3, 6] and at_epochs.updates == 7


@given(true=st.integers(0, 60), near=st.integers(1, 60), most=st.integers(1, 60))
def test_the_largest_that_fits_is_found_from_wherever_the_search_begins(true, near, most):
    tried = []

    def fits(size):
        assert 1 <= size <= most and size not in tried
        tried.append(size)
        return size <= true

    if true == 0:
        with pytest.raises(ValueError, match="not even a batch of 1"):
            largest_that(fits, min(near, most), most)
    else:
        assert largest_that(fits, min(near, most), most) == min(true, most)


def race(ratio: float, end: float, seed: int = 1) -> dict:
    losses = {name: [{"train": 7.0, "held_out": 7.0}, {"train": value, "held_out": 6.0}]
              for name, value in (("recipe", end), ("plain", 2.0 + 0.01 * seed))}  # fmt: skip
    return {"seed": seed, "tokens_per_epoch": 100, "recipe_s": [1.0, 1.0], "other_s": [ratio] * 3, "loss": losses}


def of_seeds(ratio: float, end: float) -> dict:
    return bench.summary("plain", [race(ratio, end + 0.01 * seed, seed) for seed in (1, 2, 3)])


def test_a_race_is_summed_up_by_tokens_per_second_and_by_what_chance_makes_of_a_loss():
    found = of_seeds(3.0, 2.0)
    assert found["tokens_per_s_ratio"]["median"] == pytest.approx(3.0) and found["ratio_of_each_seed"] == [3.0] * 3
    assert found["tokens_per_s"] == {"recipe": 100.0, "other": pytest.approx(100 / 3)}
    loss = found["loss"]["train"]
    assert loss["difference"] == pytest.approx(0) and loss["noise"] == pytest.approx(2.776 * (2 * 1e-4 / 3) ** 0.5)
    assert loss["recipe"] == pytest.approx([7.0, 2.02]) and loss["is_within_noise"] and not loss["is_worse"]
    lower = of_seeds(3.0, 1.5)["loss"]["train"]
    assert not lower["is_within_noise"] and not lower["is_worse"]
    assert bench.summary("plain", [race(3.0, 9.0)])["loss"]["train"]["noise"] is None
    assert "3.00 x" in bench.sentence("plain", found)


def peak(gib: float) -> dict:
    return {"peak": {"allocated_bytes": gib, "device_bytes": gib}}


@pytest.mark.parametrize(
    ("part", "found", "holds"),
    [
        ("plain", {"plain": of_seeds(2.1, 2.0)}, True),
        ("plain", {"plain": of_seeds(1.9, 2.0)}, False),
        ("plain", {"plain": of_seeds(2.1, 2.5)}, False),
        ("memory", {"headline": HEADLINE, **against(peak(20.0), {HEADLINE: peak(11.0)})}, True),
        ("memory", {"headline": HEADLINE, **against(peak(20.0), {HEADLINE: peak(13.0)})}, False),
        ("largest", {"share": 0.99, "out_of_memory_trials": 0}, True),
        ("largest", {"share": 0.97, "out_of_memory_trials": 0}, False),
        ("largest", {"share": 0.99, "out_of_memory_trials": 1}, False),
    ],
)
def test_each_limit_can_be_missed(part: str, found: dict, holds: bool):
    assert bench.passed({"parts": {part: found}}) == {part: holds}


def test_a_run_of_some_parts_keeps_what_was_found_of_the_others(tmp_path: Path):
    bench.keep({"plain": {"a": 1}, "memory": {"b": 2}}, tmp_path)
    path, result = bench.keep({"plain": {"a": 3}}, tmp_path)
    assert result["parts"] == {"plain": {"a": 3}, "memory": {"b": 2}} and json.loads(path.read_text()) == result
    assert {"cpu", "versions", "date"} <= result.keys()


def test_long_rows_differ_and_fill_any_limit(tmp_path: Path):
    path = long_rows([("你好", "你好吗"), ("再见", "")], tmp_path / "long.jsonl", 5)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == 5 and all(len(text) >= 2000 for row in rows for text in row.values())


def test_both_sides_must_have_the_same_schedule(tmp_path: Path):
    words = ["--data", str(tmp_path / "rows.jsonl"), *FLAGS, "--out", str(tmp_path)]
    assert race_of([*words, "--batch-size", "8"]).steps(17) == 3
    with pytest.raises(ValueError, match="another schedule"):
        race_of([*words, "--schedule", "constant"])


@pytest.mark.heavy
@pytest.mark.parametrize("side", ["plain", "trainer", "trainer-by-length"])
def test_both_sides_begin_alike_and_learn(side: str, tmp_path: Path):
    rows = [{"prompt": f"第{n}个问题是什么", "response": "答案是。" * (1 + n % 3)} for n in range(40)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    tokenizer = tokenizer_in(tmp_path / "tokenizer", data, 320, filled=True)
    words = ["--data", str(data), "--tokenizer", str(tokenizer), "--cache", str(tmp_path / "cache"), *FLAGS]
    found = run_race([*words, "--epochs", "5", "--batch-size", "8"], side, seed=1)
    own, other = found["loss"]["recipe"], found["loss"][side]
    assert own[0] == pytest.approx(other[0]) and len(own) == len(other) == 6
    assert max(own[-1]["train"], other[-1]["train"]) < 0.6 * own[0]["train"]
    assert len(found["recipe_s"]) == 2 and len(found["other_s"]) == 3 and found["vocabulary"] == 320
