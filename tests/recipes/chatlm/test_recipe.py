"""The training as a whole: it learns, is measured exactly, goes on where it stopped, and refuses
what does not belong to it.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cyclopts import CycloptsError
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from brimful.errors import UsageError
from brimful.measure import host as machine
from recipes.chatlm.__main__ import app
from recipes.chatlm.data import encode, train_tokenizer
from recipes.chatlm.generation import Chat
from recipes.chatlm.recipe import bleu_sums, derive
from recipes.chatlm.settings import AnswerOptions
from tests.recipes.chatlm.conftest import SMALL, run_recipe, write_rows
from tests.recipes.conftest import difference, environment, events, newest_weights

TOKENIZER = train_tokenizer([("你好吗", "我很好，谢谢")], 262)
texts = st.text(alphabet="我很好谢你ab ，", max_size=12)


def tokens(rows: list[str]) -> torch.Tensor:
    made = [torch.tensor(one) for one, _ in encode(TOKENIZER, rows, 100)]
    return torch.nn.utils.rnn.pad_sequence(
        made, batch_first=True, padding_value=TOKENIZER.pad_token_id
    )


@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=10), size=st.integers(1, 4))
def test_bleu_over_batches_is_that_of_the_whole_corpus(pairs, size):
    sums = {"loss": (3.0, 2.0)}
    for start in range(0, len(pairs), size):
        made, wanted = map(list, zip(*pairs[start : start + size], strict=True))
        model = SimpleNamespace(generate=lambda made=made, **_: tokens(made))
        labels = tokens(wanted).masked_fill(tokens(wanted) == TOKENIZER.pad_token_id, -100)
        for name, one in bleu_sums(model, (None, None, labels), TOKENIZER, 20).items():
            total, count = sums.get(name, (0.0, 0.0))
            sums[name] = (total + float(one.total), count + float(one.count))
    whole = BLEU(tokenize="zh").corpus_score(
        [made for made, _ in pairs], [[wanted for _, wanted in pairs]]
    )
    assert derive(sums)["bleu"] == pytest.approx(whole.score)
    assert derive(sums)["perplexity"] == pytest.approx(4.4817, abs=1e-4)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("max-prompt-tokens", 1),
        ("eval-share", 1),
        ("vocab-size", 257),
        ("model", "large"),
        ("freeze", "decoder"),
        ("dropout", -0.1),
        ("loss-chunk", -1),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_flag(flag, value):
    with pytest.raises(CycloptsError, match=f"--{flag}"):
        app.parse_args([f"--{flag}", str(value)], exit_on_error=False, print_error=False)


def test_without_data_there_is_nothing_to_train_on():
    assert "--data is missing" in run_recipe(code=2).stderr


@pytest.fixture(scope="module")
def trained(rows_file: Path, tokens_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measured on the rows that it learns by heart: 40 are too few to learn more of."""
    out = tmp_path_factory.mktemp("trained")
    flags = (
        "--epochs",
        30,
        "--lr",
        3e-3,
        "--dropout",
        0,
        "--eval-every-epochs",
        15,
        "--eval-data",
        rows_file,
    )
    run_recipe("--data", rows_file, *SMALL, *flags, "--out", out, "--cache", tokens_cache)
    return out


@pytest.mark.heavy
def test_a_training_learns_and_is_measured(trained: Path):
    losses = [row["loss"] for row in events(trained, "epoch")]
    assert losses[0] > 3 and losses[-1] < 1, losses
    last = events(trained, "epoch")[-1]
    assert (
        set(last["measures"]) == {"loss", "perplexity", "bleu"}
        and 10 < last["measures"]["bleu"] < 100.01
    )
    assert (
        json.loads((trained / "training_stats.json").read_text())["samples"]
        == last["samples"]
        == 30 * 40
    )


@pytest.mark.heavy
def test_it_answers_chats_and_is_evaluated(trained: Path, rows_file: Path):
    place = ("--checkpoint", trained, "--device", "cpu")
    answers = run_recipe("answer", "第3个问题是什么", "第4个问题是什么", *place).stdout.splitlines()
    assert len(answers) == 2 and all("答案" in one for one in answers)
    options = AnswerOptions(trained, "cpu", temperature=2.0, seed=5)
    drawn = [Chat(options).answers(["第3个问题是什么"]) for _ in range(2)]
    assert drawn[0] == drawn[1]
    talked = run_recipe(
        "chat", *place, typed="第3个问题是什么\n\n第4个问题是什么\n"
    ).stdout.splitlines()
    assert [line.strip() for line in talked] == answers
    shown = run_recipe("evaluate", "--data", rows_file, *place).stdout
    patterns = (
        r"^loss ([\d.]+) over 40 rows",
        r"tok:zh[^=]*version[^=]* = ([\d.]+)",
        r"chrF2[^=]*version[^=]* = ([\d.]+)",
    )
    loss, bleu, chrf = (float(re.findall(pattern, shown)[0]) for pattern in patterns)
    assert (
        loss < 2
        and chrf > 10
        and bleu == pytest.approx(events(trained, "epoch")[-1]["measures"]["bleu"], abs=0.01)
    )


@pytest.mark.heavy
@pytest.mark.usefixtures("four_cores")
def test_beside_other_work_it_answers_with_as_many_threads_as_cores_are_idle(trained, monkeypatch):
    monkeypatch.setattr(machine, "busy_cores", lambda: 3)
    Chat(AnswerOptions(trained, "cpu"))
    assert torch.get_num_threads() == 1


@pytest.mark.heavy
def test_a_folder_without_a_training_is_refused(tmp_path: Path, trained: Path):
    for place, words in ((tmp_path / "none", "There is no checkpoint"), (tmp_path, "chatlm.json")):
        with pytest.raises(UsageError, match=words):
            Chat(AnswerOptions(place, "cpu"))
    (tmp_path / "chatlm.json").write_text((trained / "chatlm.json").read_text())
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    words = f"has {len(TOKENIZER)} tokens and is not the one of the training, which had 320"
    with pytest.raises(UsageError, match=words):
        Chat(AnswerOptions(tmp_path, "cpu"))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (("--vocab-size", 300), "vocabulary 320 and not 300"),
        (("--freeze", "encoder"), "freeze 'none' and not 'encoder'"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused_by_the_difference(
    trained: Path, rows_file: Path, tokens_cache: Path, other, words
):
    before = sorted(path.name for path in (trained / "checkpoints").iterdir())
    flags = dict(zip(SMALL[::2], SMALL[1::2], strict=True)) | dict([other])
    pairs = [word for both in flags.items() for word in both]
    refused = run_recipe(
        "--data", rows_file, *pairs, "--out", trained, "--cache", tokens_cache, code=2
    )
    assert (
        words in refused.stderr
        and "--resume no" in refused.stderr
        and "Traceback" not in refused.stderr
    )
    assert sorted(path.name for path in (trained / "checkpoints").iterdir()) == before


STEADY = [
    *("--dropout", "0", "--optimizer", "sgd", "--lr", "0.05", "--clip-norm", "0"),
    *("--epochs", "4", "--no-bleu", "--max-tokens", "10000"),
]


#: The training, which is asked to end once a checkpoint is there.
STOPPED = """
import os, runpy, signal
from brimful_train.checkpoints.folder import Checkpoints
save = Checkpoints.save
def save_and_end(*arguments, **more):
    result = save(*arguments, **more)
    os.kill(os.getpid(), signal.SIGTERM)
    return result
Checkpoints.save = save_and_end
runpy.run_module("recipes.chatlm", run_name="__main__", alter_sys=True)
"""


def stopped(words: list[str]) -> None:
    program = [sys.executable, "-c", STOPPED, *words]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 143, done.stderr


@pytest.mark.heavy
def test_it_goes_on_with_the_next_sample_with_another_batch_and_other_ranks(
    rows_file: Path, tokens_cache: Path, tmp_path: Path
):
    """Stopped within its epochs; then 4 × 2 accumulated; and two ranks of 4: the weights of a run
    that was never stopped.
    """
    common = ["--data", rows_file, *SMALL, *STEADY, "--cache", tokens_cache]
    run_recipe(*common, "--out", tmp_path / "whole")
    parts = tmp_path / "parts"
    stopped([*map(str, common), "--out", str(parts), "--save-every", "8"])
    halved = [word if word != "8" else "4" for word in common]
    assert "Resumed from" in run_recipe(*halved, "--accumulation", 2, "--out", parts).stderr
    done = run_recipe(*halved, "--out", tmp_path / "ranks", "--backend", "gloo", ranks=2)
    assert done.stderr.count("chatlm, preset fast") == 1
    whole = newest_weights(tmp_path / "whole")
    samples = events(tmp_path / "whole", "epoch")[-1]["samples"]
    for folder in ("parts", "ranks"):
        assert difference(whole, newest_weights(tmp_path / folder)) < 1e-4, folder
        assert events(tmp_path / folder, "epoch")[-1]["samples"] == samples


@pytest.mark.heavy
def test_every_switch_trains(rows_file: Path, tokens_cache: Path, tmp_path: Path):
    common = ("--data", rows_file, "--cache", tokens_cache)
    flags = (
        "--gradient-checkpointing",
        "--optimizer",
        "adafactor",
        "--freeze",
        "encoder",
        "--max-tokens",
        200,
    )
    run_recipe(
        *common,
        *SMALL[:-1],
        "bf16",
        *flags,
        "--loss-chunk",
        5,
        "--max-steps",
        2,
        "--out",
        tmp_path / "one",
    )
    flags = ("--preset", "original", "--loss-chunk", 0, "--max-steps", 1)
    done = run_recipe(*common, *SMALL, *flags, "--out", tmp_path / "other")
    assert "chatlm, preset original" in done.stderr


@pytest.mark.heavy
def test_a_tokenizer_is_trained_by_command_and_used(
    rows_file: Path, tokens_cache: Path, tmp_path: Path
):
    run_recipe(
        "tokenizer", "--data", rows_file, "--vocab-size", 290, "--out", tmp_path / "tokenizer"
    )
    flags = ("--tokenizer", tmp_path / "tokenizer", "--cache", tokens_cache)
    run_recipe("prepare", "--data", rows_file, *flags)
    held = write_rows(tmp_path / "held.jsonl", 5)
    more = ("--max-steps", 1, "--eval-data", held, "--out", tmp_path / "out")
    run_recipe("--data", rows_file, *SMALL, *flags, *more)
    facts = json.loads((tmp_path / "out" / "chatlm.json").read_text())
    assert (facts["vocabulary"], facts["training_rows"], facts["held_out_rows"]) == (290, 40, 5)
