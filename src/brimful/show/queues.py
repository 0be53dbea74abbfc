"""What to ask a queue for, in its own words: text to paste. What is known of a number stands in a
comment; of a partition, a time limit or an image nothing is known, and nothing is said.
"""

import math
import textwrap
from collections.abc import Callable

from brimful.show.section import Facts
from brimful.show.text import Cell
from brimful.units import GIB, MIB, format_bytes
from brimful.values import QueueRequest

# SkyPilot's names (docs.skypilot.co/en/latest/compute/gpus.html, "Supported accelerators"), which
# tell no SXM board from a PCIe one.
SKYPILOT = {
    "v100-16gb": "V100",
    "v100-32gb": "V100-32GB",
    "t4": "T4",
    "a100-40gb": "A100",
    "a100-80gb": "A100-80GB",
    "a100-40gb-pcie": "A100",
    "a100-80gb-pcie": "A100-80GB",
    "a10": "A10",
    "a10g": "A10G",
    "a40": "A40",
    "a6000": "RTXA6000",
    "a5000": "RTXA5000",
    "a4000": "RTXA4000",
    "rtx3060-12gb": "RTX3060",
    "rtx3090": "RTX3090",
    "l4": "L4",
    "l40": "L40",
    "l40s": "L40S",
    "rtx6000-ada": "RTX6000-Ada",
    "rtx4090": "RTX4090",
    "h100": "H100",
    "h100-pcie": "H100",
    "h200": "H200",
    "b200": "B200",
    "rtx5080": "RTX5080",
    "rtx5090": "RTX5090",
}
# Ray's names (docs.ray.io/en/latest/ray-core/accelerator-types.html; the constants stand in
# ray/util/accelerators/accelerators.py). A100-80G is one that a cluster gives its nodes by hand.
RAY = {
    "v100-16gb": "V100",
    "t4": "T4",
    "a100-40gb": "A100",
    "a100-80gb": "A100-80G",
    "a100-40gb-pcie": "A100",
    "a100-80gb-pcie": "A100-80G",
    "a10g": "A10G",
    "l4": "L4",
    "l40s": "L40S",
    "h100": "H100",
    "h100-pcie": "H100",
    "h200": "H200",
    "b200": "B200",
}
_POD_SHM_BYTES = 64 * MIB  # of a container where nobody says otherwise (containerd, Docker)


def _slurm(request: QueueRequest) -> list[str]:
    """Options of sbatch (slurm.schedmd.com/sbatch.html); --gres and --mem are of one node."""
    # A cluster names its types itself (slurm.schedmd.com/gres.conf.html, "Type"); cards that SLURM
    # finds by NVML are called so (src/plugins/gpu/common/gpu_common.c).
    name = "" if _is_custom(request) else f":{request.gpu.name.lower().replace(' ', '_')}"
    assumed = f"# The type {name[1:]} is assumed: `sinfo -o %G` lists those of a cluster."
    return [
        *([assumed] if name else []),
        f"#SBATCH --nodes={request.machines}",
        f"#SBATCH --ntasks-per-node={request.tasks}",
        f"#SBATCH --gres=gpu{name}:{request.cards}",
        f"#SBATCH --cpus-per-task={math.ceil(request.cores.value / request.tasks)}",
        *_memory(request, "#SBATCH --mem={}G"),
    ]


def _skypilot(request: QueueRequest) -> list[str]:
    """A task's fields (docs.skypilot.co/en/latest/reference/yaml-spec.html); memory is in GiB, and
    a plus sign means at least.
    """
    name = SKYPILOT.get(request.gpu.key)
    return [
        *([f"num_nodes: {request.machines}"] if request.machines > 1 else []),
        "resources:",
        f"  accelerators: {name}:{request.cards}"
        if name is not None
        else _without_a_name(request, "SkyPilot", "  "),
        f"  cpus: {request.cores.value:.0f}+",
        *_memory(request, "  memory: {}+"),
    ]


def _ray(request: QueueRequest) -> list[str]:
    """docs.ray.io/en/latest/train/api/doc/ray.train.ScalingConfig.html: a worker is a rank."""
    name, ranks = RAY.get(request.gpu.key), request.ranks
    resources = [
        f'"CPU": {math.ceil(request.cores.value / ranks)}',
        f'"GPU": {math.ceil(request.cards / ranks)}',
        *_memory(request, '"memory": {} * 1024**3', ranks),
    ]
    by_hand = "  # a label that a cluster gives by hand: Ray finds A100 of both sizes"
    return [
        "ScalingConfig(",
        f"    num_workers={ranks * request.machines},",
        "    use_gpu=True,",
        f'    accelerator_type="{name}",{by_hand if name == "A100-80G" else ""}'
        if name is not None
        else _without_a_name(request, "Ray", "    "),
        f"    resources_per_worker={{{', '.join(resources)}}},",
        ")",
    ]


def _kubernetes(request: QueueRequest) -> list[str]:
    """Of a pod: kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus. The label is that of NVIDIA's
    GPU feature discovery (github.com/NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery).
    """
    label = [
        "# of the pod; the label is assumed to be there: NVIDIA's GPU feature discovery sets it",
        "nodeSelector:",
        f"  nvidia.com/gpu.product: {request.gpu.name.replace(' ', '-')}",
    ]
    shm = (
        f"# /dev/shm of a pod has {format_bytes(_POD_SHM_BYTES)}, and loader workers hand over "
        f"{format_bytes(request.shm_bytes)} through it: mount an emptyDir with medium: Memory there"
    )
    return [
        *([f"# of each of {request.machines} pods"] if request.machines > 1 else []),
        *([] if _is_custom(request) else label),
        *([shm] if request.shm_bytes > _POD_SHM_BYTES else []),
        "# of the container",
        "resources:",
        "  limits:",
        f"    nvidia.com/gpu: {request.cards}",
        f"    cpu: {request.cores.value:.0f}",
        *_memory(request, "    memory: {}Gi"),
    ]


QUEUES: dict[str, Callable[[QueueRequest], list[str]]] = {
    "slurm": _slurm,
    "skypilot": _skypilot,
    "ray": _ray,
    "kubernetes": _kubernetes,
}


def request_facts(request: QueueRequest) -> Facts:
    """What to ask for, whatever the queue."""
    gpu, peak, cores = request.gpu, request.peak_bytes, request.cores
    at = f" at batch size {request.batch_size:,}" if request.batch_size is not None else ""
    fits = f"a peak of {format_bytes(peak.value)} in {format_bytes(gpu.total_bytes.value)}{at}"
    memory = [
        ("host memory", Cell(text, host.source, note=host.note))
        for text in _memory(request, "{} GiB")
        if (host := request.host_bytes) is not None
    ]
    machines = Cell(f"{request.machines}, and of each of them:")
    return Facts(
        "",
        (
            *([("machines", machines)] if request.machines > 1 else []),
            ("cards", Cell(f"{request.cards} x {gpu.name} ({gpu.key})", peak.source, note=fits)),
            ("cores", Cell(f"{cores.value:.0f}", cores.source, note=cores.note)),
            *(memory or [("host memory", Cell("not known: no trial showed it"))]),
        ),
    )


def queue_text(request: QueueRequest, queue: str) -> str:
    """Lines to paste, with the facts in comments. `queue`: of `QUEUES`."""
    comments = [
        textwrap.fill(
            f"{name}: {cell.text}"
            + (f" ({cell.source.value}): {cell.note}" if cell.source else ""),
            100,
            initial_indent="# ",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, cell in request_facts(request).rows
    ]
    return "\n".join([*comments, *QUEUES[queue](request)])


def _without_a_name(request: QueueRequest, queue: str, indent: str) -> str:
    least = format_bytes(request.gpu.total_bytes.value)
    return f"{indent}# {queue} has no name for this card: any with {least} or more will do"


def _is_custom(request: QueueRequest) -> bool:
    """Whether the card was given by its memory alone, and has no name."""
    return request.gpu.key.startswith("custom-")


def _memory(request: QueueRequest, text: str, parts: int = 1) -> list[str]:
    """Whole GiB of host memory in a queue's words, as one line; [] where it is not known."""
    known = request.host_bytes
    return [] if known is None else [text.format(math.ceil(known.value / parts / GIB))]
