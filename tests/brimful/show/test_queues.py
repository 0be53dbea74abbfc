"""What is asked of a queue, in its own words: each text is read as that queue reads it."""

import ast
import re
import shlex
from dataclasses import replace

import pytest

from brimful.measure.gpus import CARDS, custom_gpu, find_gpu
from brimful.show.queues import QUEUES, RAY, SKYPILOT, queue_text
from brimful.values import Estimate, QueueRequest, Source

GIB = 1 << 30
ASKED = QueueRequest(
    gpu=find_gpu("a100-80gb"),
    cards=1,
    machines=1,
    ranks=1,
    tasks=1,
    cores=Estimate(5, Source.PREDICTED, note="one for the training, and 4 loader workers"),
    host_bytes=Estimate(11.2 * GIB, Source.ESTIMATE, note="3 GiB held in a trial here (measured)"),
    shm_bytes=2 * GIB,
    peak_bytes=Estimate(71 * GIB, Source.PREDICTED),
    batch_size=64,
)
MANY = replace(
    ASKED,
    gpu=find_gpu("h100"),
    cards=8,
    machines=4,
    ranks=8,
    tasks=8,
    cores=Estimate(40, Source.ASSUMED, note="as the command has them"),
    host_bytes=Estimate(90 * GIB, Source.ESTIMATE, note="…"),
)
UNKNOWN = replace(ASKED, gpu=custom_gpu("20GiB"), host_bytes=None)


def slurm(request):
    """As sbatch reads the options of a script: each on a line of its own, before any command."""
    lines = queue_text(request, "slurm").splitlines()
    assert all(line.startswith("#") for line in lines)
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    return dict(
        option.removeprefix("--").split("=")
        for option in map(shlex.join, map(shlex.split, options))
    )


def ray(request):
    """The arguments of the ScalingConfig that the text makes."""
    (call,) = ast.parse(queue_text(request, "ray")).body
    assert isinstance(call, ast.Expr) and ast.unparse(call.value).startswith("ScalingConfig(")
    made = {}
    exec(queue_text(request, "ray"), {"ScalingConfig": lambda **given: made.update(given)})
    return made


def skypilot(request):
    return pytest.importorskip("yaml").safe_load(queue_text(request, "skypilot"))


def kubernetes(request):
    return pytest.importorskip("yaml").safe_load(queue_text(request, "kubernetes"))


OF_A_NODE = {"nodes": "1", "ntasks-per-node": "1", "cpus-per-task": "5"}
OF_A_WORKER = {"CPU": 5, "GPU": 1, "memory": 12 * GIB}


@pytest.mark.parametrize(
    ("read", "request_", "expected"),
    [
        (slurm, ASKED, OF_A_NODE | {"gres": "gpu:nvidia_a100-sxm4-80gb:1", "mem": "12G"}),
        (
            slurm,
            MANY,
            OF_A_NODE
            | {"nodes": "4", "ntasks-per-node": "8"}
            | {"gres": "gpu:nvidia_h100_80gb_hbm3:8", "mem": "90G"},
        ),
        (slurm, UNKNOWN, OF_A_NODE | {"gres": "gpu:1"}),
        (
            skypilot,
            ASKED,
            {"resources": {"accelerators": "A100-80GB:1", "cpus": "5+", "memory": "12+"}},
        ),
        (
            skypilot,
            MANY,
            {
                "num_nodes": 4,
                "resources": {"accelerators": "H100:8", "cpus": "40+", "memory": "90+"},
            },
        ),
        (skypilot, UNKNOWN, {"resources": {"cpus": "5+"}}),
        (
            ray,
            ASKED,
            {
                "num_workers": 1,
                "use_gpu": True,
                "accelerator_type": "A100-80G",
                "resources_per_worker": OF_A_WORKER,
            },
        ),
        (
            ray,
            MANY,
            {
                "num_workers": 32,
                "use_gpu": True,
                "accelerator_type": "H100",
                "resources_per_worker": OF_A_WORKER,
            },
        ),
        (
            ray,
            UNKNOWN,
            {"num_workers": 1, "use_gpu": True, "resources_per_worker": {"CPU": 5, "GPU": 1}},
        ),
        (
            kubernetes,
            ASKED,
            {
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
                "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 5, "memory": "12Gi"}},
            },
        ),
        (kubernetes, UNKNOWN, {"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 5}}}),
    ],
)
def test_each_queue_reads_what_a_node_a_task_a_worker_or_a_container_takes(
    read, request_, expected
):
    assert read(request_) == expected


@pytest.mark.parametrize(
    ("queue", "request_", "words", "said"),
    [
        ("slurm", ASKED, "assumed: `sinfo -o %G`", True),
        ("slurm", UNKNOWN, "sinfo", False),
        ("skypilot", UNKNOWN, "no name for this card: any with 20.0 GiB or more", True),
        ("ray", ASKED, "gives by hand", True),
        ("ray", MANY, "by hand", False),
        ("kubernetes", ASKED, "2.00 GiB through it: mount an emptyDir", True),
        ("kubernetes", replace(ASKED, shm_bytes=GIB >> 5), "/dev/shm", False),
        ("kubernetes", MANY, "each of 4 pods", True),
    ],
)
def test_what_a_queue_cannot_be_asked_for_is_said_beside_it(queue, request_, words, said):
    assert (words in queue_text(request_, queue)) is said


@pytest.mark.parametrize("queue", QUEUES)
def test_every_number_says_where_it_comes_from_and_what_is_not_known_is_not_asked_for(queue):
    text = " ".join(queue_text(ASKED, queue).replace("#", "").split())
    assert "cards: 1 x NVIDIA A100-SXM4-80GB (a100-80gb) (predicted): a peak of 71.0 GiB" in text
    assert "cores: 5 (predicted): one for the training, and 4 loader workers" in text
    assert "host memory: 12 GiB (estimate): 3 GiB held in a trial here (measured)" in text
    assert "host memory: not known" in queue_text(UNKNOWN, queue)
    assert not re.search("partition|time|walltime|image", text.replace("runtime", ""))


def test_all_names_are_of_cards_of_the_catalogue_and_the_same_name_is_never_a_smaller_card():
    memory = {gpu.key: round(gpu.total_bytes.value / GIB) for gpu in CARDS}
    for names in (SKYPILOT, RAY):
        assert names.keys() <= memory.keys()
        for name in names.values():
            assert len({memory[key] for key, other in names.items() if other == name}) == 1, name


def test_rays_names_are_those_that_ray_has():
    known = list(vars(pytest.importorskip("ray.util.accelerators.accelerators")).values())
    assert all(name in known for name in RAY.values())
