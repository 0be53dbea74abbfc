"""The command line of a recipe: the engine's Config, presets under it, and how it ends."""

import functools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cyclopts import App

from brimful.errors import BrimfulError, DoesNotFit, Terminated, UsageError
from brimful_train.config import Config
from recipes.common import running
from recipes.common.running import Preset, Presets

NAMED = Preset(
    "named",
    "For tests.",
    {
        **{
            "out": "here",
            "batch-size": 1024,
            "effective-batch": 3072,
            "lr": 6e-4,
            "scaling": "sqrt",
            "reference-batch": 64,
        },
        **{"epochs": 150, "precision": "bf16", "channels-last": True},
    },
    {"epochs": "assumed: a round number"},
)
SETTINGS = Config(out=Path("out"))


def parsed(
    *argv: object, preset: Preset = NAMED
) -> tuple[Config, dict[str, tuple[object, object, str]]]:
    """The Config of a command line, and its rows by name."""
    presets = Presets(preset, replace(preset, name="other"))
    app = App(config=presets.apply)

    @app.default
    def train(*, preset: str = "named", config: Config = SETTINGS) -> Config:
        return config

    function, bound, _ = app.parse_args(
        [str(word) for word in argv], exit_on_error=False, print_error=False
    )
    return function(*bound.args, **bound.kwargs), {
        row.name: (row.requested, row.effective, row.why) for row in presets.rows
    }


@pytest.mark.parametrize(
    ("flags", "dotted", "value"),
    [
        (("--batch-size", 32), "batch.micro_batch", 32),
        (("--effective-batch", 128), "batch.effective", 128),
        (("--eval-batch-size", 77), "batch.eval_batch", 77),
        (("--drop-last",), "batch.drop_last", True),
        (("--optimizer", "sgd", "--momentum", 0.5), "optimizer.momentum", 0.5),
        (("--schedule", "wsd"), "schedule.kind", "wsd"),
        (("--num-workers", 3), "data.workers", 3),
        (("--resume", "no"), "checkpoints.resume", "no"),
        (("--checkpoint-every-minutes", 5), "checkpoints.every_minutes", 5.0),
        (
            ("--checkpoint-every-steps", 10),
            "checkpoints.every_epochs",
            None,
        ),  # another interval stands in place of epochs
        (
            ("--checkpoint-every-steps", 10, "--checkpoint-every-epochs", 2),
            "checkpoints.every_epochs",
            2,
        ),
        (("--save-every", 500), "checkpoints.every_samples", 500),
        (("--save-every", 500), "checkpoints.every_epochs", None),
        (("--clip-norm", 0), "clip_norm", None),
        (("--precision", "fp16"), "precision", "fp16"),
        (("--no-channels-last",), "channels_last", False),
        (("--out", "elsewhere"), "out", Path("elsewhere")),
        ((), "channels_last", True),
        ((), "batch.effective", 3072),
    ],
)
def test_a_flag_arrives_in_its_setting_and_a_preset_where_none_is_given(
    flags, dotted: str, value: object
):
    config, _ = parsed(*flags)
    assert functools.reduce(getattr, dotted.split("."), config) == value


def test_each_row_says_where_its_value_comes_from():
    _, rows = parsed("--precision", "fp32", "--seed", 3, "--preset", "other")
    expected = {
        "precision": ("fp32", "fp32", "given; preset other has bf16"),
        "seed": ("3", "3", "given"),
        "epochs": (None, 150, "preset other; assumed: a round number"),
    }
    assert rows == {**rows, **expected}


def test_the_effective_batch_of_a_preset_goes_with_its_batch_size():
    for flag in ("--batch-size", "--accumulation"):
        config, rows = parsed(flag, 2)
        assert config.batch.effective is None and "3,072 is not kept" in rows["effective-batch"][2]
    assert parsed("--batch-size", 64, "--effective-batch", 128)[0].batch.effective == 128


def test_the_limit_of_tokens_of_a_preset_caps_no_batch_size_that_was_given():
    held = replace(NAMED, flags={**NAMED.flags, "max-tokens": 4096})
    config, rows = parsed("--batch-size", 64, preset=held)
    assert config.batch.max_tokens is None and "--max-tokens 4096" in rows["max-tokens"][2]
    assert parsed("--batch-size", 64, "--max-tokens", 100, preset=held)[0].batch.max_tokens == 100
    assert parsed("--lr", 0.1, preset=held)[0].batch.max_tokens == 4096


def test_a_learning_rate_that_was_given_is_not_scaled():
    config, rows = parsed("--lr", 1e-3)
    assert (config.scaling.rule, config.scaling.reference_batch) == ("none", None)
    assert "not scaled from batch 64" in rows["scaling"][2]
    assert parsed("--lr", 1e-3, "--scaling", "linear")[0].scaling.rule == "linear"


def test_an_unknown_preset_names_those_that_exist():
    with pytest.raises(UsageError) as caught:
        parsed("--preset", "nmed")
    assert "nmed" in caught.value.problem and "Nearest: named" in caught.value.suggestion


def app_that(ends_with: BaseException | int, command: str = "", name: str = "recipe") -> App:
    """A recipe whose training ends so: the app's default, or the command of that name."""
    app = App(name=name)

    def train(*, config: Config = SETTINGS) -> int:
        if isinstance(ends_with, BaseException):
            raise ends_with
        return ends_with

    app.command(train, name=command) if command else app.default(train)
    return app


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (0, 0),
        (2, 2),
        (DoesNotFit("problem"), 3),
        (Terminated(), 143),
        (BrimfulError("problem"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_ending_has_its_exit_code(what: BaseException | int, code: int):
    assert running.run(app_that(what), []) == code


@pytest.mark.parametrize("command", ["", "train"])
def test_the_first_rank_reports_all_in_the_words_of_the_command_line(capsys, monkeypatch, command):
    error = UsageError(
        "config.batch.micro_batch: 9 is more than 5.",
        "It cannot be filled.",
        "Set config.optimizer.lr.",
    )
    app, argv = app_that(error, command), [command] if command else []
    assert running.run(app, argv) == 2
    assert capsys.readouterr().err.splitlines() == [
        "--batch-size: 9 is more than 5.",
        "It cannot be filled.",
        "Set --lr.",
    ]
    monkeypatch.setenv("RANK", "2")
    assert running.run(app, argv) == 2
    assert capsys.readouterr().err == "rank 2: --batch-size: 9 is more than 5.\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--sed", "1"], "--sed"),
        (["--batch-size", "x"], "--batch-size"),
        (["--batch-size", "0"], "--batch-size = 0"),
    ],
)
def test_a_wrong_option_is_a_sentence_without_a_traceback(argv, words, capsys):
    assert running.run(app_that(0), argv) == 2
    shown = capsys.readouterr().err
    assert words in shown and "Traceback" not in shown


def test_a_package_that_is_missing_is_named_with_its_extra(capsys):
    app = app_that(
        ModuleNotFoundError("No module named 'rdkit'", name="rdkit.Chem"),
        name="python -m recipes.ood_dpo",
    )
    assert running.run(app, []) == 2
    shown = capsys.readouterr().err
    assert "package rdkit is not installed" in shown and "'.[train,ood]'" in shown


def test_what_nobody_foresaw_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        running.run(app_that(ZeroDivisionError()), [])


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("captcha.__main__", "cyclopts"),
        ("chatlm.__main__", "cyclopts"),
        ("ood_dpo.__main__", "cyclopts"),
        ("captcha.cache", "captcha"),
        ("ood_dpo.encoders.chemnet_symbols", "rdkit"),
    ],
)
def test_a_command_line_and_what_worker_processes_import_need_no_torch(module: str, needs: str):
    pytest.importorskip(needs)
    program = f"import sys, recipes.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_a_preset_is_no_word_of_the_user():
    config, _ = parsed("--eval-batch-size", 8, "--num-workers", 2)
    given = {name for name in ("eval_batch", "micro_batch") if config.gave(f"batch.{name}")}
    assert given == {"eval_batch"} and config.gave("data.workers")
    alone = replace(SETTINGS, batch=replace(SETTINGS.batch, micro_batch=32))
    for made, was_given in (
        (parsed("--batch-size", 1024)[0], True),  # the preset's number, and given
        (parsed()[0], False),
        (alone, True),
        (SETTINGS, False),
    ):
        assert made.gave("batch.micro_batch") is was_given
