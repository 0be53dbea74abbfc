"""One rank without its launcher: the command that is left, and the environment that the launcher
would have given.
"""

import pytest

from brimful.errors import UsageError
from brimful.measure.single_rank import alone_environment, without_launcher


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("torchrun --nproc-per-node 8 --nnodes=8 train.py --lr 1e-3", "python train.py --lr 1e-3"),
        (
            "torchrun --standalone --nproc_per_node=gpu -m package.train -x",
            "python -m package.train -x",
        ),
        ("torchrun --nproc-per-node 2 --no-python ./train.sh 5", "./train.sh 5"),
        ("torchrun --run-path train.py 5", "python train.py 5"),
        (
            "torchrun --rdzv-backend c10d --rdzv-endpoint host:0 --nnodes 1:4 train.py",
            "python train.py",
        ),
        (
            "python3 -m torch.distributed.run --nproc-per-node 2 train.py --nproc 3",
            "python3 train.py --nproc 3",
        ),
        (
            "python -m torch.distributed.launch --use_env --nproc_per_node 2 train.py",
            "python train.py",
        ),
        ("accelerate launch --num_processes 4 --multi_gpu train.py -b 3", "python train.py -b 3"),
        ("python -m accelerate.commands.launch --num_processes=4 -m train", "python -m train"),
        ("deepspeed --num_gpus 8 --no_ssh train.py --stage 3", "python train.py --stage 3"),
        ("python -m deepspeed.launcher.runner --module package.train", "python -m package.train"),
        ("python train.py --batch-size 3", "python train.py --batch-size 3"),
    ],
)
def test_the_launcher_is_taken_off(words, left):
    assert without_launcher(words.split())[0] == tuple(left.split())


def test_the_environment_of_accelerates_launcher_is_kept():
    words = [
        "accelerate",
        "launch",
        "--mixed_precision",
        "bf16",
        "--num_processes",
        "2",
        "train.py",
    ]
    assert without_launcher(words)[1] == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    assert without_launcher(["torchrun", "train.py"])[1] == {}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("accelerate launch --use_fsdp train.py", "use_fsdp"),
        ("torchrun --nproc-per-node 8", "without a script"),
        ("accelerate launch --num_processes 2", "without a script"),
    ],
)
def test_what_only_a_launcher_understands_is_refused_and_one_without_a_script(words, problem):
    with pytest.raises(UsageError, match=problem):
        without_launcher(words.split())


def test_the_interpreter_beside_a_launcher_is_taken(tmp_path):
    for name in ("torchrun", "python"):
        (tmp_path / name).touch()
    assert without_launcher([str(tmp_path / "torchrun"), "train.py"])[0] == (
        str(tmp_path / "python"),
        "train.py",
    )


@pytest.mark.parametrize(
    ("ranks", "rank", "cards", "laid_out"),
    [
        (
            *(64, 21, 8),
            {
                "RANK": "21",
                "WORLD_SIZE": "64",
                "LOCAL_RANK": "5",
                "LOCAL_WORLD_SIZE": "8",
                "GROUP_RANK": "2",
            },
        ),
        (2, 1, 8, {"LOCAL_WORLD_SIZE": "2"}),
        (64, 63, 1, {"LOCAL_RANK": "0"}),
    ],
)
def test_ranks_are_laid_out_over_nodes_by_the_cards_of_one(ranks, rank, cards, laid_out):
    assert alone_environment(ranks, rank, cards).items() >= laid_out.items()
