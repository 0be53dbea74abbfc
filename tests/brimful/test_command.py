"""The user's command as a template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import command as commands
from brimful.errors import UsageError

BATCH_SIZES = [
    *("--batch_size 64", "--batch-size=64", "--bs 64", "-b 64", "--per_device_train_batch_size 64"),
    *("--train_batch_size=64", "--batch_size_per_gpu 64", "data.batch_size=64", "+trainer.bs=64"),
    *("--data.batch_size 64", "--data.batch-size=64", "--train.micro_batch_size 64"),
    *("--device_batch_size=64", "--batch 64", "batch=64", "train/loader.batch_size=64"),
    *("--batchSize 64", "--bsz 64", "--train_bs 64", "--train-batch 64", "--per-gpu-batch 64"),
    *("--micro-batch-size=64", "--train_micro_batch_size_per_gpu 64", "--windows_batch_size 64"),
    "model.batchSize=64",
]
ACCUMULATIONS = [
    *("--accum 3", "--grad-accum 3", "--grad_accum=3", "--accumulation-steps 3"),
    *("--accumulate-grad-batches 3", "--accumulate_grad_batches=3", "--update-freq 3"),
    *("--gradient_accumulation_steps 3", "--grad-accum-steps 3", "--accum_iter 3"),
    *("trainer.accumulate_grad_batches=3", "+train.grad_accum=3", "--accum-freq 3"),
    "--trainer.accumulate_grad_batches 3",
]


@pytest.mark.parametrize(
    ("given", "setting", "value", "opened"),
    [
        *((given, "batch_size", 64, ("batch_size",)) for given in BATCH_SIZES),
        *((given, "accumulation", 3, ()) for given in ACCUMULATIONS),
    ],
)
def test_a_known_flag_is_reported_and_opened_for_the_batch_size_and_left_for_an_accumulation(
    given, setting, value, opened
):
    words = given.split()
    argv = ["python", "train.py", *words, "--epochs", "3"]
    command = commands.parse(argv)
    assert command.found_flags == {setting: words[0].partition("=")[0]}
    assert (command.given, commands.placeholders(command)) == ({setting: value}, opened)
    assert [w.replace("96", "64") for w in commands.fill(command, {"batch_size": 96})] == argv


@pytest.mark.parametrize(
    "words",
    [
        ["--accumulation", "--amp"],
        ["--update-freq", "[4]"],
        ["--accum=auto"],
        ["train.grad_accum=true"],
        ["--accum", "2.5"],
        ["-b", "file.txt"],
        ["batch=auto"],
        ["--batch", "--amp"],
        ["--data.batch_size"],
        ["my batch_size=4"],
        ["--no.batch_sizes", "4"],
        ["-c", "import train as m; m.batch_size=64; m.main()"],
        ["-c", "m.batch_size=64"],
        ["-c", "batch_size=64;import train"],
    ],
)
def test_what_is_no_whole_number_or_no_key_is_not_taken_for_an_accumulation_or_a_batch_size(words):
    command = commands.parse(["python", *["train.py"] * ("-c" not in words), *words])
    assert command.given == command.found_flags == {}


def test_a_placeholder_goes_before_any_flag():
    words = ("--accum", "{accumulation}", "--update-freq", "2")
    assert "accumulation" not in commands.parse(("python", "a.py", *words)).given
    words = ("--batch-size", "8", "--my-batch", "{batch_size}")
    command = commands.parse(("python", "train.py", *words))
    assert (command.argv[3], command.found_flags) == ("8", {})


def test_other_known_flags_are_read_and_left_as_they_are():
    command = commands.parse(
        ["python", "train.py", "--batch-size", "8", "--lr", "3e-4", "--num_workers=2"]
    )
    assert command.given == {"batch_size": 8, "lr": 3e-4, "num_workers": 2}
    assert "--num_workers=2" in command.argv


@pytest.mark.parametrize(
    ("words", "problem", "suggestion"),
    [
        (["--wd", "{weight_decay}"], "weight_decay", "--set weight_decay"),
        (["--batch-size", "{batch_size}", "--batch-size", "32"], "is followed by", "keep one"),
        (["--batch-size={batch_size}", "--batch-size=32"], "is followed by", "keep one"),
        (["--lr", "{lr}", "--wd", "1", "--lr", "0.1"], "is followed by", "keep one"),
    ],
)
def test_a_placeholder_that_nobody_sets_or_the_same_flag_overrides_further_on_is_refused(
    words, problem, suggestion
):
    with pytest.raises(UsageError, match=problem) as caught:
        commands.fill(commands.parse(["python", "train.py", *words]), {})
    assert suggestion in caught.value.suggestion


def test_braces_that_are_no_placeholders_are_left_alone():
    words = ("python", "-c", "print({1: 2}, {'a': 3}, f'{X}')")
    assert commands.fill(commands.parse(words), {}) == words


@pytest.mark.parametrize(
    "flag",
    [
        *("--eval-batch-size", "--val_bs", "--test-batch", "--max-batch-size", "--num_batches"),
        *("--batch-norm", "--batch_first", "--global_batch_size", "--auto-batch", "--rebatch"),
        *("--limit-train-batches", "--per_device_eval_batch_size", "-batch", "--bsd"),
    ],
)
def test_a_flag_for_something_else_is_not_opened(flag):
    assert commands.placeholders(commands.parse(["python", "train.py", flag, "64"])) == ()


@pytest.mark.parametrize(
    ("words", "opened"),
    [
        ("--batch_size 128 --micro_batch_size 4", "--micro_batch_size"),
        ("--micro_batch_size 4 --batch_size 128", "--micro_batch_size"),
        ("--batch-size 8 --windows-batch-size 1024", "--batch-size"),
        ("--train-batch-size 8 --batch-size 16", "--batch-size"),
        ("--batch auto --bs 16", "--bs"),
    ],
)
def test_of_several_flags_that_fit_the_one_of_a_single_pass_is_opened(words, opened):
    assert commands.parse(["train.py", *words.split()]).found_flags == {"batch_size": opened}


@given(
    st.lists(
        st.text(alphabet=st.characters(exclude_characters="{}="), max_size=12),
        min_size=1,
        max_size=6,
    )
)
def test_words_without_placeholders_and_flags_pass_through_unchanged(words):
    if not any(
        slot.fit(name) for slot in commands._slots(tuple(words)) for name in commands._SETTINGS
    ):
        assert commands.fill(commands.parse(words), {"batch_size": 1}) == tuple(words)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ('brimful.setting("batch_size", 64)', True),
        ("setting( 'batch_size',64)", True),
        ("batch_size = 64", False),
    ],
)
def test_a_script_that_asks_inside_is_recognised(text, asks):
    assert commands.says_inside(text, "batch_size") is asks


def test_doubled_braces_are_the_scripts_own():
    command = commands.parse(
        ["python", "train.py", "--out", "run-{{epoch}}.pt", "--batch-size", "{batch_size}"]
    )
    assert commands.placeholders(command) == ("batch_size",)
    assert commands.fill(command, {"batch_size": 4})[3] == "run-{epoch}.pt"


def test_a_place_to_resume_is_left_out_of_trials_and_filled_word_by_word_in_a_run():
    command = commands.parse(("train", "--bs", "{batch_size}", "{resume}", "--from={resume}"))
    assert commands.placeholders(command) == ("batch_size",)
    plain = commands.parse(("train", "{{resume}}"))
    assert commands.can_resume(command) and not commands.can_resume(plain)
    assert commands.fill(command, {"batch_size": 4}) == ("train", "--bs", "4")
    again = commands.resuming(command, ("--resume", "the last"))
    assert commands.fill(again, {"batch_size": 4}) == (
        "train",
        "--bs",
        "4",
        "--resume",
        "the last",
        "--from=--resume the last",
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("python a.py --batch-size 4", "/env/bin/python3.11 a.py --batch-size {batch_size}", True),
        (
            "python a.py --batch-size=4 --lr 0.1",
            "python a.py --batch-size={batch_size} --lr 3",
            True,
        ),
        ("python a.py -b 4", "python a.py -b {batch_size} --accum {accumulation} {resume}", True),
        ("python a.py -b 4", "python a.py -b 4 --gradient_accumulation_steps 2", True),
        ("python a.py train.batch_size=4", "python a.py train.batch_size={batch_size}", True),
        ("python a.py --batch-size 4", "python b.py --batch-size 4", False),
        ("python a.py --batch-size 4 --wide", "python a.py --batch-size 4", False),
        ("python a.py --size 4", "python a.py --size 5", False),
        ("torchrun a.py", "python a.py", False),
        (
            "python a.py --output_dir ./outputs/x --seed 1",
            "python a.py --seed=2 --output_dir ./outputs/r",
            True,
        ),
        ("python a.py --seed 1 --run-name x --logging_dir l", "python a.py", True),
        (
            "python a.py hydra.run.dir=x seed=1 trainer.default_root_dir=a",
            "python a.py seed=2",
            True,
        ),
        (
            "torchrun --master_port 1 a.py --split-seed 3 --epochs 1",
            "torchrun --master_port=2 a.py --epochs 3",
            True,
        ),
        ("python a.py name=x", "python a.py", True),
        ("python a.py model.name=x", "python a.py model.name=y", False),
        ("python a.py --model_name x", "python a.py --model_name y", False),
        ("python a.py --seed 1 x", "python a.py --seed 1 y", False),
        ("torchrun --run-path a.py", "torchrun --run-path b.py", False),
        ("python -c seed=1", "python -c seed=2", False),
    ],
)
def test_commands_are_the_same_if_only_settings_and_what_is_free_differ(one, other, same):
    assert (
        commands.signature(commands.parse(one.split()))
        == commands.signature(commands.parse(other.split()))
    ) == same


def test_of_a_flag_given_twice_the_last_one_is_the_batch_size_as_with_argparse():
    command = commands.parse(["python", "train.py", "--batch-size", "64", "--batch-size", "32"])
    assert command.given == {"batch_size": 32}
    assert commands.fill(command, {"batch_size": 8})[-4:] == (
        "--batch-size",
        "64",
        "--batch-size",
        "8",
    )
    assert commands.signature(
        commands.parse(["python", "train.py", "--batch-size", "64", "--batch-size", "{batch_size}"])
    ) == commands.signature(command)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("batchsize", "did you mean batch_size?"),
        ("bs", "did you mean batch_size?"),
        ("per_device_train_batch_size", "did you mean batch_size?"),
        ("contxt", "did you mean context?"),
        (
            "max_length",
            "goes, for instance:\nmy-train -b 64 --context=32 --max-length '{max_length}'",
        ),
        ("context", "goes, for instance:\nmy-train -b 64 '--context={context}'"),
    ],
)
def test_a_setting_without_a_place_is_explained_with_the_users_own_command(name, says):
    command = commands.parse(("my-train", "-b", "64", "--context=32"))
    error = commands.no_place_for(command, name, "no place")
    assert "the command's settings are batch_size, context" in error.explanation
    assert error.suggestion.endswith(says)


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("data.batch_size=8 model.depth=3 --amp --lr 1", "settings are batch_size, lr, depth"),
        ("--depth 3", "the command's settings are depth"),
        ("--amp", "the command has no settings"),
        ("--workers 4", "settings are num_workers"),  # each once
    ],
)
def test_the_settings_of_hydra_and_of_flags_without_a_value_are_told_apart(words, end):
    command = commands.parse(("train.py", *words.split()))
    assert commands.no_place_for(command, "width", "").explanation.endswith(end)
