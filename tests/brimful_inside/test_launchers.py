"""What a command line starts."""

import pytest

from brimful_inside.launchers import python_words, words_of_command


@pytest.mark.parametrize(
    ("line", "module", "script", "count", "loads_probe"),
    [
        ("python -X dev -u a/train.py --x", "", "a/train.py", 5, True),
        ("python -m pkg -x", "pkg", "", 3, True),
        ("python -u -W ignore train.py -m x", "", "train.py", 5, True),
        ("python -sE train.py", "", "train.py", 3, False),
        ("python -c print() train.py", "", "", None, True),
        ("python - train.py", "", "", None, True),
        ("python -m", "", "", None, True),
        ("python", "", "", None, True),
    ],
)
def test_the_words_of_python_end_with_what_it_runs(line, module, script, count, loads_probe):
    words = python_words(line.split())
    assert words[:3] == (module, script, count)
    assert count is None or words.loads_probe == loads_probe


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("torchrun train.py", "torchrun"),
        ("/venv/bin/accelerate launch train.py", "accelerate launch"),
        ("python3 -m torch.distributed.run train.py", "torchrun"),
        ("python -u /venv/bin/deepspeed train.py", "deepspeed"),
        ("fabric run train.py", "fabric"),
        ("python train.py torchrun", None),
        ("my-train", None),
    ],
)
def test_a_launcher_is_known_by_its_program_or_module(line, launcher):
    words = words_of_command(line.split())
    assert (words.launcher.name if words.launcher else None) == launcher
