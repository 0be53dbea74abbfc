import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("sacrebleu")


from bench import chatlm as bench
from bench.chatlm_memory import HEADLINE, against, tokenizer_in
from bench.chatlm_race import SIDES, race

FLAGS = (
    "--model",
    "tiny",
    "--device",
    "cpu",
    "--precision",
    "fp32",
    "--no-bleu",
    "--eval-share",
    "0.1",
)


def races(seconds: float, end: float) -> list[dict]:
    losses = [
        {rows: [7.0, end + 0.01 * seed] for rows in ("train", "held_out")} for seed in (1, 2, 3)
    ]
    times = [99.0] * bench.WARM_UP + [seconds] * 2
    return [
        {"tokens_per_epoch": 100, "seconds": times, "cpu_seconds": times, "loss": loss}
        for loss in losses
    ]


def of_seeds(ratio: float, end: float) -> dict:
    return bench.summary(races(1.0, end), races(ratio, 2.0))


def speed(ratio: float, end: float) -> dict:
    return {"against": dict.fromkeys(SIDES[1:], of_seeds(ratio, end))}


def test_races_are_summed_up_by_tokens_per_second_and_by_what_chance_makes_of_a_loss():
    figures = of_seeds(3.0, 2.0)
    assert (
        figures["tokens_per_s_ratio"]["median"] == pytest.approx(3.0)
        and figures["ratio_of_each_seed"] == [3.0] * 3
    )
    assert figures["tokens_per_s"] == {"recipe": 100.0, "other": pytest.approx(100 / 3)}
    loss = figures["loss"]["train"]
    assert loss["difference"] == pytest.approx(0) and loss["noise"] == pytest.approx(
        2.776 * (2 * 1e-4 / 3) ** 0.5
    )
    assert (
        loss["recipe"] == pytest.approx([7.0, 2.02])
        and loss["is_within_noise"]
        and not loss["is_worse"]
    )
    lower = of_seeds(3.0, 1.5)["loss"]["train"]
    assert not lower["is_within_noise"] and not lower["is_worse"]
    assert bench.summary(races(1.0, 9.0)[:1], races(3.0, 2.0)[:1])["loss"]["train"]["noise"] is None
    assert "3.00 x" in bench.sentence("plain", figures)


def peak(gib: float) -> dict:
    return {"peak": {"allocated_bytes": gib, "device_bytes": gib}}


def named(fits: bool, next_fits: bool) -> dict:
    return {"fits": fits, "next_fits": next_fits}


@pytest.mark.parametrize(
    ("part", "figures", "holds"),
    [
        ("speed", speed(2.1, 2.0), {"plain": True, "trainer": True}),
        ("speed", speed(1.9, 2.0), {"plain": False, "trainer": True}),
        ("speed", speed(1.0, 2.0), {"plain": False, "trainer": False}),
        ("speed", speed(2.1, 2.5), {"plain": False, "trainer": False}),
        (
            "memory",
            {"headline": HEADLINE, **against(peak(20.0), {HEADLINE: peak(11.0)})},
            {"memory": True},
        ),
        (
            "memory",
            {"headline": HEADLINE, **against(peak(20.0), {HEADLINE: peak(13.0)})},
            {"memory": False},
        ),
        ("largest", named(True, False), {"largest": True}),
        ("largest", named(False, False), {"largest": False}),
        ("largest", named(True, True), {"largest": False}),
    ],
)
def test_each_limit_can_be_missed(part: str, figures: dict, holds: dict):
    assert bench.passed({part: figures}) == holds


@pytest.mark.heavy
def test_all_sides_begin_alike_and_learn(tmp_path: Path):
    rows = [
        {"prompt": f"第{n}个问题是什么", "response": "答案是。" * (1 + n % 3)} for n in range(40)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    tokenizer = tokenizer_in(tmp_path / "tokenizer", data, 320, filled=True)
    words = [
        "--data",
        str(data),
        "--tokenizer",
        str(tokenizer),
        "--cache",
        str(tmp_path / "cache"),
        *FLAGS,
    ]
    results = [race(side, 1, [*words, "--epochs", "5", "--batch-size", "8"]) for side in SIDES]
    for result in results:
        loss = result["loss"]["train"]
        assert loss[0] == pytest.approx(results[0]["loss"]["train"][0]) and loss[-1] < 0.6 * loss[0]
        assert len(result["seconds"]) == 5 and len(loss) == 6 and result["vocabulary"] == 320
