from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from cyclopts import App

from brimful.errors import UsageError
from brimful.recipes.common import FLAGS, Options, Preset, choose, config_from, find_preset

PRESET = Preset(
    "named",
    "For tests.",
    Options(batch_size=1024, effective_batch=3072, lr=6e-4, scaling="sqrt", reference_batch=64, epochs=150, precision="bf16"),
    {"epochs": "assumed: a round number"},
)
OUT = Path("out")

# One value for each option that is none of the engine's own defaults, and where it must arrive.
ARRIVES = {
    "batch_size": (32, "batch.micro_batch"),
    "accumulation": (2, "batch.accumulation"),
    "effective_batch": (128, "batch.effective"),
    "eval_batch_size": (77, "batch.eval_batch"),
    "drop_last": (True, "batch.drop_last"),
    "epochs": (2.5, "epochs"),
    "max_steps": (9, "max_steps"),
    "optimizer": ("sgd", "optimizer.name"),
    "lr": (0.5, "optimizer.lr"),
    "weight_decay": (0.25, "optimizer.weight_decay"),
    "schedule": ("wsd", "schedule.kind"),
    "warmup_epochs": (0.5, "schedule.warmup_epochs"),
    "floor_lr": (1e-7, "schedule.floor_lr"),
    "clip_norm": (3.0, "clip_norm"),
    "seed": (5, "seed"),
    "on_nan": ("skip", "on_nan"),
    "eval_every_epochs": (2.0, "eval_every_epochs"),
    "device": ("cpu", "device"),
    "precision": ("fp16", "precision"),
    "gradient_checkpointing": (True, "gradient_checkpointing"),
    "compile": (True, "compile"),
    "cuda_graphs": (True, "cuda_graphs"),
    "parallel": ("fsdp2", "parallel"),
    "overlap": (True, "overlap"),
    "num_workers": (3, "data.workers"),
    "residence": ("loader", "data.residence"),
    "memory_budget": ("1GiB", "memory_budget"),
    "out": (Path("elsewhere"), "out"),
    "resume": ("no", "checkpoints.resume"),
    "checkpoint_every_epochs": (4.0, "checkpoints.every_epochs"),
    "checkpoint_every_steps": (100, "checkpoints.every_steps"),
    "checkpoint_every_minutes": (5.0, "checkpoints.every_minutes"),
    "keep_last": (7, "checkpoints.keep_last"),
    "tensorboard": (True, "tensorboard"),
    "channels_last": (True, "channels_last"),
}
# Those that do not go to the engine as they are: a pair that belongs together, and what the recipe does itself.
ELSEWHERE = {"scaling", "reference_batch", "host_allocator"}


def at(config: object, dotted: str) -> object:
    for name in dotted.split("."):
        config = getattr(config, name)
    return config


@pytest.mark.parametrize("name", ARRIVES)
def test_each_option_arrives_in_the_config_and_changes_it(name: str):
    value, dotted = ARRIVES[name]
    assert at(config_from(replace(Options(out=OUT), **{name: value})), dotted) == value
    assert at(config_from(Options(out=OUT)), dotted) != value


def test_no_option_is_left_out_of_these_tests():
    assert {field.name for field in fields(Options)} == set(ARRIVES) | ELSEWHERE


def test_scaling_arrives_with_its_reference():
    scaling = config_from(Options(out=OUT, scaling="sqrt", reference_batch=64)).scaling
    assert (scaling.rule, scaling.reference_batch) == ("sqrt", 64)


def test_a_clip_norm_of_0_switches_clipping_off():
    assert config_from(Options(out=OUT, clip_norm=0.0)).clip_norm is None


def test_another_interval_of_checkpoints_stands_in_place_of_epochs():
    checkpoints = config_from(Options(out=OUT, checkpoint_every_steps=10)).checkpoints
    assert checkpoints.every_steps == 10 and checkpoints.every_epochs is None


def test_without_a_folder_nothing_is_trained():
    with pytest.raises(UsageError, match="No folder"):
        config_from(Options())


def test_what_is_given_overrides_the_preset_and_both_are_told():
    chosen = choose(Options(precision="fp32", seed=3), PRESET)
    assert chosen.options.precision == "fp32" and chosen.options.epochs == 150
    rows = {row.name: row for row in chosen.rows}
    assert (rows["--precision"].requested, rows["--precision"].effective) == ("fp32", "fp32")
    assert rows["--precision"].why == "given; preset named has bf16"
    assert rows["--seed"].why == "given"
    assert (rows["--epochs"].requested, rows["--epochs"].why) == (None, "preset named; assumed: a round number")


def test_the_effective_batch_of_a_preset_goes_with_its_batch_size():
    assert choose(Options(), PRESET).options.effective_batch == 3072
    for given in (Options(batch_size=64), Options(accumulation=2)):
        chosen = choose(given, PRESET)
        (row,) = [row for row in chosen.rows if row.name == "--effective-batch"]
        assert chosen.options.effective_batch is None and "3,072 is not kept" in row.why
    assert choose(Options(batch_size=64, effective_batch=128), PRESET).options.effective_batch == 128


def test_a_learning_rate_that_was_given_is_not_scaled():
    chosen = choose(Options(lr=1e-3), PRESET)
    assert (chosen.options.scaling, chosen.options.reference_batch) == (None, None)
    assert any("not scaled from batch 64" in row.why for row in chosen.rows)
    assert choose(Options(lr=1e-3, scaling="linear"), PRESET).options.scaling == "linear"
    assert choose(Options(epochs=1), PRESET).options.scaling == "sqrt"


def test_a_flag_set_to_no_is_given_too():
    preset = replace(PRESET, options=Options(channels_last=True))
    assert choose(Options(channels_last=False), preset).options.channels_last is False


def test_an_unknown_preset_names_those_that_exist():
    with pytest.raises(UsageError) as caught:
        find_preset("nmed", {"named": PRESET})
    assert "nmed" in caught.value.problem and "named" in caught.value.suggestion


def test_each_flag_named_in_an_error_exists_and_each_name_is_one_of_config():
    app = App()

    @app.default
    def train(*, options: Options | None = None) -> None: ...

    known = {name for argument in app.assemble_argument_collection() for name in argument.names}
    assert set(FLAGS.values()) <= known
    config = config_from(Options(out=OUT))
    for dotted in FLAGS:
        at(config, dotted.removeprefix("config."))  # an AttributeError is a name that no longer exists
    assert {FLAGS[f"config.{dotted}"] for _, dotted in ARRIVES.values()} == {"--" + name.replace("_", "-") for name in ARRIVES}


def test_the_options_need_no_torch():
    program = "import sys, brimful.recipes.common; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
