"""How long a kernel takes on a card: the larger of its arithmetic's and its bytes' time, and what
its launch costs. The model is the roofline (Williams, Waterman, Patterson, CACM 2009) with two
things added that make the knee of a training step: a product is computed in tiles that go to the
multiprocessors in waves, so that a small one leaves most of them idle (NVIDIA, "Matrix
Multiplication Background User's Guide", sections on tile and wave quantization), and the host needs
time to dispatch each operation, so that a step of small kernels waits for the host. Times are
seconds, rates are per second. Each constant below says whether it is fitted, cited or assumed.
Cards that train together exchange bytes over links: in turn with the kernels, or beside them (a
collective), up to the end of the step."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

# Rate classes of a kernel (`Kernel.kind`): these, "fp64" and "fp32", which have a peak rate of
# arithmetic, and the next eight.
TENSOR_CORES = frozenset(("tf32", "fp16", "bf16", "fp8", "int8"))
MEMORY = "memory"  # bytes of the card
LINK, PINNED = "link", "pinned"  # bytes over the bus, of ordinary memory of the host and of pinned
# bytes that a card exchanges with others: what follows waits, or only the step's end
PEER, COLLECTIVE = (
    "peer",
    "collective",
)
SYNC = "sync"  # the host waits for the card
HOST = "host"  # the host waits for the card and computes itself, on `Kernel.bytes` of its memory
SLEEP = "sleep"  # the card counts so many cycles of its clock (`Kernel.flops`)

# What bounds a kernel.
COMPUTE, BANDWIDTH, LAUNCHES, TRANSFER, LINKS = (
    "compute",
    "bandwidth",
    "launches",
    "transfer",
    "links",
)
# `Kernel.engine` of what the autograd engine dispatches, a replayed CUDA graph runs (the host
# dispatches the graph alone), and an optimizer's step.
BY_AUTOGRAD, BY_GRAPH, BY_OPTIMIZER = 1, 2, 3
BOUNDS = (COMPUTE, BANDWIDTH, LAUNCHES, TRANSFER, LINKS, HOST)


class Kernel(NamedTuple):
    """One operation of the card, of one kernel or several of the same kind."""

    op: str
    kind: str  # rate class
    flops: int  # a multiplication and an addition are two
    bytes: int  # read and written
    launches: int = 1  # kernels
    engine: int = 0  # who dispatches it: 0 the script, else one of the three above
    # of a product, of each launch: (batch, m, n, k); of an exchange between machines: (ranks of it
    # in each,); () for all else
    shape: Tuple[int, ...] = ()


class Rates(NamedTuple):
    """A card's peak rates. None: it has no such units."""

    bandwidth_bytes_per_s: float
    fp32: float
    tf32: Optional[float]
    fp16: Optional[float]
    bf16: Optional[float]
    multiprocessors: int
    capability: Tuple[int, int]

    @property
    def cycles_per_s(self) -> float:
        """The clock at which the peak is stated."""
        return self.fp32 / (self.multiprocessors * FLOPS_A_CYCLE.get(self.capability, 256))

    def peak(self, kind: str) -> float:
        """Operations per second of a rate class; where the card lacks its units, those that stand
        in for them."""
        if kind == "fp64":
            return self.fp32 * FP64_SHARE.get(self.capability, FP64_SHARE_ELSE)
        if kind in ("fp8", "int8"):
            return (self.fp16 or self.fp32) * (
                2.0 if self.capability >= (8, 9) or kind == "int8" else 1.0
            )
        return {"tf32": self.tf32, "fp16": self.fp16, "bf16": self.bf16}.get(kind) or self.fp32


# Double precision against single, by compute capability (CUDA C++ Programming Guide, table
# "Throughput of Native Arithmetic Instructions"): 1/2 on the cards for data centres, 1/32 or 1/64
# elsewhere.
FP64_SHARE = {(7, 0): 0.5, (8, 0): 0.5, (9, 0): 0.5, (10, 0): 0.5, (7, 5): 1 / 32}
FP64_SHARE_ELSE = 1 / 64
# Of each multiprocessor in single precision: 64 cores, elsewhere 128 (the same guide, "Compute
# Capabilities"), which make a multiplication and an addition each.
FLOPS_A_CYCLE = dict.fromkeys(((6, 0), (7, 0), (7, 5), (8, 0)), 128)


class Efficiency(NamedTuple):
    """What is reached of the peaks, and what a launch costs. `tensor_cores`, `halved` and `direct`
    are fitted on published training speeds (bench/clock.py), the rest cited or assumed."""

    tensor_cores: float = 0.70  # of the peak, in large products
    # the same on GeForce cards: they add up in single precision at half the rate, so that operands
    # keep up
    halved: float = 1.0
    # assumed: copies on an A100 or V100 reach 80 to 90 % of the datasheet's figure
    bandwidth: float = 0.80
    # of single precision's peak, in grouped convolutions that tensor cores do not serve
    direct: float = 0.07
    # assumed: single precision products of cuBLAS reach 85 to 95 % where they are large
    cuda_cores: float = 0.90
    # of the peak in fused attention (Dao, FlashAttention-2, arXiv 2307.08691: 50 to 73 % on an
    # A100)
    attention: float = 0.60
    # The same before capability 8.0, forward and backward: PyTorch has CUTLASS's memory-efficient
    # kernel there, in small tiles for 64 KiB of shared memory. On a T4, by Nsight Compute
    # (github.com/ssiu/flash-attention-turing), kernels that reach 63 to 66 % of the peak forward
    # are 2.07 to 2.19 times as fast; two backward, of four and of three products, reach 49 and 45 %
    # and are together 1.35 times as fast as its five. Volta and GeForce cards are assumed to reach
    # as much.
    attention_before_8: Tuple[float, float] = (0.30, 0.25)
    # assumed: from the start of a kernel that does nothing to the start of the next one
    kernel_s: float = 2.5e-6
    # Host time of an operation without modules and gradients, as an optimizer's step has them. The
    # middle of what `doctor --calibrate` measured on rented machines with an H200 and 16 cores of
    # an Intel Xeon (torch 2.11): 9.75 µs on 26 November 2026 and 7.63 µs on the 28th.
    plain_s: float = 8.7e-6
    # assumed: five times that where Python calls it, with its module's and autograd's bookkeeping;
    # three times where the autograd engine does; 0.8 times for each further kernel of an operation
    script_s: float = 43.5e-6
    engine_s: float = 26.1e-6
    launch_s: float = 7e-6
    # assumed: 16 lanes of PCIe 3.0 carry 12 GB/s, of later ones twice and four times that
    pinned_bytes_per_s: float = 12e9
    peer_bytes_per_s: float = 12e9  # between cards, each way (assumed: 16 lanes of PCIe 3.0)
    # of each card, to other machines (assumed: 200 Gb/s, as a DGX A100 has for each of its cards)
    network_bytes_per_s: float = 25e9
    # assumed: memory that is not pinned goes through a buffer at half of that
    link_bytes_per_s: float = 6e9
    # what a host's optimizer reads and writes in a second (assumed: two channels of DDR4-3200 carry
    # 51 GB/s, a server's eight 205)
    host_bytes_per_s: float = 40e9

    def with_host(self, factor: float) -> Efficiency:
        """The same card with a host that is `factor` times as slow."""
        return self._replace(
            script_s=self.script_s * factor,
            engine_s=self.engine_s * factor,
            plain_s=self.plain_s * factor,
            launch_s=self.launch_s * factor,
            host_bytes_per_s=self.host_bytes_per_s / factor,
        )


DEFAULT = Efficiency()

# (rows, columns) of a tile with the share of a multiprocessor's rate that kernels of such tiles
# reach: small ones load more for each multiplication (NVIDIA's guide, "Dimension Quantization
# Effects" and its figure on tile sizes).
TENSOR_TILES = ((256, 128, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.65), (64, 32, 0.5))
SCALAR_TILES = ((128, 128, 1.0), (128, 64, 0.95), (64, 64, 0.9), (32, 32, 0.7))
# half precision against single: 2 on GeForce cards from Ampere on, 4 to 16 on all that have full
# rates
HALVED_UP_TO = 2.5
PACKED_FROM, PACKED_WIDTH = 32, 64  # groups, and channels of a block on the diagonal (assumed)
DEPTH = 32  # a tile goes through k in steps of this length
SPLITS = (1, 2, 4, 8, 16, 32, 64)  # k is split over several multiprocessors where tiles are few


class Timed(NamedTuple):
    """A kernel's time on the card: what binds it, its busy time, and the part of it that is the
    cost of starting it."""

    seconds: float
    bound: str
    start_s: float


def kernel_time(kernel: Kernel, rates: Rates, efficiency: Efficiency = DEFAULT) -> Timed:
    """The time of a kernel on the card, whose inputs are there."""
    kind = kernel.kind
    if kind == SYNC:
        return Timed(0.0, LAUNCHES, 0.0)
    if kind == HOST:
        return Timed(kernel.bytes / efficiency.host_bytes_per_s, HOST, 0.0)
    start = kernel.launches * efficiency.kernel_s
    if kind == SLEEP:
        return Timed(start + kernel.flops / rates.cycles_per_s, COMPUTE, start)
    if kind in (LINK, PINNED):
        rate = efficiency.link_bytes_per_s if kind == LINK else efficiency.pinned_bytes_per_s
        return Timed(start + kernel.bytes / rate, TRANSFER, start)
    if kind in (PEER, COLLECTIVE):
        rate = efficiency.peer_bytes_per_s
        # Between machines NCCL's rings leave by the network of every card that takes part
        # (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md: the bus bandwidth is that of the
        # slowest link of a ring).
        if kernel.shape:
            rate = min(rate, kernel.shape[0] * efficiency.network_bytes_per_s)
        return Timed(start + kernel.bytes / rate, LINKS, start)
    memory = kernel.bytes / (rates.bandwidth_bytes_per_s * efficiency.bandwidth)
    compute = 0.0
    if is_grouped(kernel):
        compute = _grouped_time(kernel, rates, efficiency)
    elif kernel.shape:
        compute = max(1, kernel.launches) * product_time(kernel.shape, kind, rates, efficiency)
    elif kernel.flops:
        compute = kernel.flops / (rates.peak(kind) * _attention_share(kernel, rates, efficiency))
    work, bound = (compute, COMPUTE) if compute > memory else (memory, BANDWIDTH)
    return Timed(start + work, bound if work > start else LAUNCHES, start)


def _attention_share(kernel: Kernel, rates: Rates, efficiency: Efficiency) -> float:
    """What fused attention, whose kernels have no shape, reaches of the peak."""
    if kernel.kind not in TENSOR_CORES:
        return efficiency.cuda_cores
    return (
        efficiency.attention
        if rates.capability >= (8, 0)
        else efficiency.attention_before_8["backward" in kernel.op]
    )


def is_grouped(kernel: Kernel) -> bool:
    """A convolution by groups: what is known least of all (cuDNN has kernels for some of them and
    not for others)."""
    return bool(kernel.shape) and kernel.shape[0] > 1 and "convolution" in kernel.op


def _grouped_time(kernel: Kernel, rates: Rates, efficiency: Efficiency) -> float:
    """Of many groups, blocks on the diagonal are packed into tiles; few groups, and one for each
    channel, run on CUDA cores."""
    groups, m, n, k = kernel.shape
    width = min(m, n, k)
    if groups < PACKED_FROM or width == 1 or kernel.kind not in TENSOR_CORES:
        return kernel.flops / (rates.fp32 * efficiency.direct)
    return (
        kernel.flops
        * max(1, PACKED_WIDTH // width)
        / (rates.peak(kernel.kind) * _reached(kernel.kind, rates, efficiency))
    )


def _reached(kind: str, rates: Rates, efficiency: Efficiency) -> float:
    """The share of its peak that a large product reaches."""
    if kind not in TENSOR_CORES:
        return efficiency.cuda_cores
    return (
        efficiency.halved
        if rates.peak("fp16") <= HALVED_UP_TO * rates.fp32
        else efficiency.tensor_cores
    )


def product_time(
    shape: Sequence[int], kind: str, rates: Rates, efficiency: Efficiency = DEFAULT
) -> float:
    """Seconds of arithmetic of `batch` products of (m, k) by (k, n): waves of tiles over the
    multiprocessors, k split where tiles are few."""
    batch, m, n, k = shape
    tensor = kind in TENSOR_CORES
    processors = rates.multiprocessors
    rate = rates.peak(kind) * _reached(kind, rates, efficiency) / processors
    depth = -(-k // DEPTH) * DEPTH
    best = float("inf")
    for rows, columns, reached in TENSOR_TILES if tensor else SCALAR_TILES:
        tiles = batch * -(-m // rows) * -(-n // columns)
        for split in SPLITS:
            length = -(-depth // (split * DEPTH)) * DEPTH
            waves = -(-tiles * split // processors)
            best = min(best, waves * 2.0 * rows * columns * length / (rate * reached))
            if tiles * split >= processors or length == DEPTH:
                break
    return best


def over_links(collective: str, nbytes: float, ranks: int) -> float:
    """Bytes that each card sends in NCCL's rings, for `nbytes` of the whole tensor
    (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): all of it twice, but for its own part, to
    reduce it for all; once to gather, scatter or exchange it."""
    name = collective.replace("_", "")
    if ranks < 2 or "barrier" in name:
        return 0.0
    sent_share = (ranks - 1) / ranks
    if "allreduce" in name:
        return 2 * sent_share * nbytes
    return (
        sent_share * nbytes
        if any(part in name for part in ("allgather", "reducescatter", "alltoall"))
        else nbytes
    )


class Step(NamedTuple):
    """The time of one step, and where it goes. `shares` are seconds by BOUNDS; they add up to
    `seconds`."""

    seconds: float
    device_s: float  # the card is busy, collectives aside
    shares: Dict[str, float]
    links_s: float = 0.0  # of exchange between cards, also where other work hides it


def dispatch_time(kernel: Kernel, efficiency: Efficiency = DEFAULT) -> float:
    """Seconds that the host takes to dispatch an operation."""
    if kernel.engine == BY_GRAPH or kernel.kind in (SYNC, HOST):
        return 0.0
    operation_s = efficiency.script_s
    if kernel.engine:
        operation_s = efficiency.engine_s if kernel.engine == BY_AUTOGRAD else efficiency.plain_s
    return operation_s + max(0, kernel.launches - 1) * efficiency.launch_s


class Queue:
    """Two queues in simple form: the host dispatches operations one after another, the card runs
    them in that order. `host` and `device` are the moments, in seconds, at which each is done with
    all it was given so far; `links` that of the collectives, which run beside the card's
    kernels."""

    def __init__(self) -> None:
        self.host = self.device = self.links = 0.0

    def run(self, kind: str, dispatch_s: float, seconds: float) -> None:
        """A kernel of this kind, which the host dispatches and the card runs for so long."""
        if kind in (SYNC, HOST):
            self.synchronize()
            self.host += seconds
            return
        self.host += dispatch_s
        if kind == COLLECTIVE:
            self.links = max(self.links, self.device, self.host) + seconds
        else:
            start = self.host if self.host > self.device else self.device
            self.device = start + seconds

    def end_step(self) -> float:
        """The optimizer waits for the collectives. Returns the seconds that they were still to
        take."""
        done = max(self.device, self.host)
        self.device = max(self.device, self.links)
        return max(0.0, self.links - done)

    def synchronize(self) -> None:
        self.host = max(self.host, self.device)


class Span(NamedTuple):
    """When a kernel of a step was dispatched and ran: beginning and end, in seconds from the end of
    the step before. A host that runs ahead dispatches before that. What runs on the host alone, or
    makes it wait, is no span of the card."""

    host: Tuple[float, float]
    card: Optional[Tuple[float, float]]


def step_time(
    kernels: Sequence[Kernel],
    times: Sequence[Timed],
    efficiency: Efficiency = DEFAULT,
    spans: Optional[List[Span]] = None,
) -> Step:
    """The time of a step that is one of many: from the end of one to the end of the next, after a
    first one. The span of each kernel is appended to `spans`."""
    queue = Queue()
    ran = [
        (kernel.kind, dispatch_time(kernel, efficiency), timed.seconds)
        for kernel, timed in zip(kernels, times)
    ]
    for row in ran:
        queue.run(*row)
    queue.end_step()
    begun = max(queue.device, queue.host)
    for row in ran:
        host = queue.host - begun
        queue.run(*row)
        if spans is not None:
            kind, _, busy_s = row
            end = (queue.links if kind == COLLECTIVE else queue.device) - begun
            card = None if kind in (SYNC, HOST) else (end - busy_s, end)
            spans.append(Span((host, queue.host - begun), card))
    waited = queue.end_step()
    seconds = max(queue.device, queue.host) - begun
    in_turn = [
        timed for kernel, timed in zip(kernels, times) if kernel.kind not in (COLLECTIVE, HOST)
    ]
    device = sum(timed.seconds for timed in in_turn)
    shares: Dict[str, float] = dict.fromkeys(BOUNDS, 0.0)
    for timed in in_turn:
        shares[timed.bound] += timed.seconds - timed.start_s
        shares[LAUNCHES] += timed.start_s
    shares[LINKS] += waited
    idle = max(0.0, seconds - waited - device)
    shares[HOST] = min(idle, sum(timed.seconds for timed in times if timed.bound == HOST))
    shares[LAUNCHES] += idle - shares[HOST]
    links = sum(timed.seconds for timed in times if timed.bound == LINKS)
    return Step(seconds, device, shares, links)
