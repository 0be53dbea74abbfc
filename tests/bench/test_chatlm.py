import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("sacrebleu")


from bench.chatlm_memory import tokenizer_in
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
