import pytest

from brimful_inside.probe.context import role_of


@pytest.mark.parametrize(
    ("argv", "role"),
    [
        (["python", "train.py"], "rank"),
        (["python", "-u", "-W", "ignore", "train.py", "-m", "x"], "rank"),
        (["python", "-c", "import torch"], "rank"),
        (["python", "-m", "package.train"], "rank"),
        (["python", "/venv/bin/torchrun", "train.py"], "launcher"),
        (["python", "-m", "torch.distributed.run", "train.py"], "launcher"),
        (["python", "/venv/bin/accelerate", "launch", "train.py"], "launcher"),
        (["python", "/venv/bin/deepspeed", "train.py"], "launcher"),
        (
            [
                "python",
                "-c",
                "from multiprocessing.spawn import spawn_main; spawn_main()",
                "--multiprocessing-fork",
            ],
            "child",
        ),
        (["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"], "worker"),
    ],
)
def test_a_process_is_known_by_its_arguments(argv, role):
    assert role_of(argv) == role
