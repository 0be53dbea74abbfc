"""The changes that may lower a peak, cheapest first, for `brimful.verbs.what_if` to make one on top
of the other.

Each entry of `FREE`, `MICRO_BATCHES`, `OF_THE_SCRIPT` and `SHARDED` takes what the changes so far
lead to, and yields the change, or why it cannot help; nothing where it does not apply. Where it
yields several, each is the same change taken further.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain

from brimful.decide.memory import remedies
from brimful.decide.memory.breakdown import GRADIENTS, OPTIMIZER_STATE, PARAMETERS, Allocation
from brimful.decide.memory.remedies import Memory, Resize
from brimful.decide.speed import updates
from brimful.decide.speed.kernels import fit_kernels
from brimful.decide.speed.predicted import LINKS_REACHED, efficiency_of, predict_speed
from brimful.decide.speed.updates import Reworked
from brimful.values import Estimate, Gpu, NoRemedy, Setting, Source, Verdict
from brimful_inside.simulator.allocator_settings import (
    conf_in,
    settings_from,
    with_expandable_segments,
)
from brimful_inside.simulator.roofline import BY_GRAPH, BY_OPTIMIZER, Kernel

_CARDS = (2, 4, 8)  # of one machine


@dataclass(frozen=True)
class Change:
    """One change, made by arithmetic on the memory and the kernels of a step, or by a trial."""

    code: str
    what: str
    how: str  # what to write or set; "": what the trial found to switch
    memory: Callable[[Memory], Memory] = lambda memory: memory
    rework: Reworked | None = None
    more_s: float = 0.0  # of a step, beside its kernels
    is_estimate: bool = False
    basis: str = ""
    # by a trial
    switch: str = ""  # "autocast", "checkpointing"
    eval_batch_size: int | None = None
    batch_size: int | None = None  # of a micro-batch
    parts: int = 1  # micro-batches of a step


@dataclass(frozen=True)
class Facts:
    """What changes depend on, and none of them moves."""

    gpu: Gpu
    environment: Mapping[str, str]
    optimizers: Sequence[str]  # their class names
    switched: set[str]  # codes of the changes that the script has made itself
    eval_batch_size: Setting | None
    eval_samples: int | None  # of the largest evaluation batch; None: not known
    ranks: int
    has_batches: bool
    largest: int | None  # batch size that fits as it is
    known_from: int | None  # the smallest batch size whose allocations a model gives
    of_one_size: bool  # kernels of one batch size say nothing of another
    is_timed: bool


@dataclass(frozen=True)
class Situation:
    """What the changes so far lead to."""

    facts: Facts
    memory: Memory
    batch_size: int | None  # of a micro-batch
    kernels: Mapping[int, Sequence[Kernel]]  # of a micro-batch, by batch size
    changes: tuple[Change, ...] = ()

    @property
    def fits(self) -> bool:
        return self.memory.verdict == Verdict.FITS

    @property
    def parts(self) -> int:
        return max((change.parts for change in self.changes), default=1)

    @property
    def source(self) -> Source:
        is_estimate = any(change.is_estimate for change in self.changes)
        return Source.ESTIMATE if is_estimate else Source.PREDICTED

    def followed_by(self, change: Change) -> "Situation":
        """With the change in the list, and the memory as it was."""
        size = change.batch_size or self.batch_size
        return replace(self, batch_size=size, changes=(*self.changes, change))

    def on(self, memory: Memory) -> "Situation":
        """All changes made to the memory of another trace."""
        for change in self.changes:
            memory = change.memory(memory)
        return replace(self, memory=memory)

    @cached_property
    def step_s(self) -> Estimate | None:
        """Of as many micro-batches as make a step, and one update."""
        reworks = [change.rework for change in self.changes if change.rework]
        step_s = self._with_kernels(reworks)
        if step_s is not None and self.parts > 1:
            memory = self.memory
            sum_of_all = updates.adding_gradients(
                memory.bytes_of(GRADIENTS), memory.count_of(GRADIENTS)
            )
            micro_s = self._with_kernels([sum_of_all])
            step_s = micro_s and updates.micro_batches_s(step_s, micro_s, self.parts)
        more_s = sum(change.more_s for change in self.changes)
        return step_s and step_s.with_all(lambda seconds: seconds + more_s)

    def _with_kernels(self, reworks: Sequence[Reworked]) -> Estimate | None:
        steps = self.kernels
        if not self.facts.is_timed or (self.facts.of_one_size and self.parts > 1):
            return None
        engines = {kernel.engine for kernels in steps.values() for kernel in kernels}
        if reworks and BY_GRAPH in engines and BY_OPTIMIZER not in engines:
            return None  # the update is in the graph, and nobody knows which kernels it is
        for rework in reworks:
            steps = {size: rework(kernels) for size, kernels in steps.items()}
        kernels = fit_kernels(steps)
        if kernels is None:
            return None
        speed = predict_speed(kernels, self.facts.gpu, self.batch_size, None, None)
        return speed.step_s if speed is not None else None


Changes = Iterator[Change | NoRemedy]


def _resized(resize: Resize) -> Callable[[Memory], Memory]:
    return lambda memory: memory.resized(resize)


# --- without a change to the script ---


def _expandable_segments(now: Situation) -> Changes:
    code, what, memory = "expandable-segments", "expandable segments", now.memory
    settings = memory.card.settings
    if not settings.native:
        return
    if memory.program.settings_after(settings).expandable_segments:
        yield NoRemedy(code, what, "the command uses them already")
        return
    conf = with_expandable_segments(now.facts.environment)

    def expanded(memory: Memory) -> Memory:
        card = replace(memory.card, settings=settings._replace(expandable_segments=True))
        return replace(memory, card=card)

    yield Change(code, what, f"PYTORCH_CUDA_ALLOC_CONF={conf} before the command", expanded)


def rounded_sizes(now: Situation) -> Changes:
    """What else keeps uneven batches from leaving the reserved memory in pieces."""
    memory = now.memory
    settings = memory.program.settings_after(memory.card.settings)
    if not memory.epochs or settings.expandable_segments or not settings.native:
        return
    conf = conf_in(now.facts.environment)

    def rounded(text: str, memory: Memory) -> Memory:
        return replace(memory, card=replace(memory.card, settings=settings_from(text)))

    best = min(
        (
            ",".join(filter(None, (conf, f"roundup_power2_divisions:{divisions}")))
            for divisions in remedies.DIVISIONS
        ),
        key=lambda text: rounded(text, memory).rank,
    )
    how = f"PYTORCH_CUDA_ALLOC_CONF={best} before the command"
    yield Change("rounded-sizes", "sizes rounded up", how, partial(rounded, best))


def _fused_optimizer(now: Situation) -> Changes:
    name = _optimizer(now, remedies.FUSED_OPTIMIZERS)
    if name and any(map(remedies.is_of_the_step, now.memory.annotated.allocations)):
        yield Change(
            "fused-optimizer",
            "a fused optimizer",
            f'fused=True in {name}, optim="{name.lower()}_torch_fused" of Transformers\' Trainer',
            _resized(remedies.fused),
            updates.updated_by(_update_bytes(now.memory), 1),
            is_estimate=True,
            basis="without the step's temporaries",
        )


def _update_bytes(memory: Memory) -> int:
    return updates.update_bytes(memory.bytes_of(GRADIENTS), memory.bytes_of(OPTIMIZER_STATE))


def _optimizer(now: Situation, names: Sequence[str]) -> str | None:
    return next((name for name in now.facts.optimizers if name in names), None)


def _smaller_evaluation(now: Situation) -> Changes:
    """Where evaluation sets the peak: its batch in as few parts as are enough, run where the
    command has a place for its size, else estimated."""
    if now.memory.phase != "eval" or now.facts.eval_samples == 1:
        return
    size, parts = now.facts.eval_batch_size, 1
    for parts in remedies.EVALUATION_PARTS:
        after = now.memory.resized(remedies.evaluation_in(parts))
        if after.phase != "eval" or after.verdict == Verdict.FITS:
            break
    change = Change("eval-batch", "a smaller evaluation batch", "")
    if isinstance(size, int) and size > 1:
        smaller = max(1, size // parts)
        how = f"an evaluation batch of {smaller}"
        yield replace(change, how=how, eval_batch_size=smaller)
        return
    yield replace(
        change,
        how=f"an evaluation loader with a batch size of its own, 1/{parts} of this or less",
        memory=_resized(remedies.evaluation_in(parts)),
        is_estimate=True,
        basis=f"what the evaluation makes in {parts} parts",
    )


# --- changes to the script ---


def _last_result(now: Situation) -> Changes:
    unit = "batch" if now.memory.phase == "eval" else "step"
    how = f"del what {{}} made, before the next {unit} begins"
    what = "freeing the last result"
    yield from _freed_sooner(now, remedies.is_a_result, "last-result", what, how)


def _gradients_of_the_last_step(now: Situation) -> Changes:
    how = "optimizer.zero_grad() right after optimizer.step(): what {} made lives on till then"
    what = "freeing gradients after the step"
    yield from _freed_sooner(now, remedies.is_a_gradient, "zero-grad", what, how)


def _freed_sooner(
    now: Situation, concerns: Callable[[Allocation], bool], code: str, what: str, how: str
) -> Changes:
    """Nothing where it does not lower the peak. `how` has a place for the line that makes most of
    what is freed."""
    memory = now.memory
    after = memory.freed_sooner(concerns)
    if not remedies.is_worth_it(memory.device_bytes, after.device_bytes):
        return
    lines = Counter[str]()
    for number in memory.carried_over(concerns):
        where = memory.annotated.allocations[number].site.where
        lines[where.partition(" in ")[0]] += memory.sizes[number]
    line = how.format(lines.most_common(1)[0][0])
    yield Change(code, what, line, lambda memory: memory.freed_sooner(concerns))


def _micro_batches(now: Situation) -> Changes:
    """The same batch in parts with the gradients summed: as few as make it fit, else the most that
    sizes are known for.
    """
    size, facts = now.batch_size, now.facts
    if size is None or not facts.has_batches or now.memory.phase != "train":
        return
    first = 2 if facts.known_from is not None else size
    parts = first = max(2, -(-size // facts.largest) if facts.largest else first)
    while parts <= size:
        part = -(-size // parts)
        is_known = facts.known_from is not None and part >= facts.known_from
        if not is_known and facts.largest is None and parts > first:
            return
        known = "sizes extrapolated to" if is_known else "a trial at"
        yield Change(
            f"accumulation-{parts}",
            f"batch size {part:,} with {parts} accumulation steps",
            f"batches of {part}, optimizer.step() after every {parts} of them, the loss divided "
            f"by {parts}: the same effective batch",
            Memory.with_all_gradients,
            is_estimate=True,
            basis=f"{known} batch size {part}, with all gradients alive",
            batch_size=part,
            parts=parts,
        )
        parts *= 2


def _mixed_precision(now: Situation) -> Changes:
    code, what = "mixed-precision", "mixed precision"
    if remedies.computes_in_half(chain.from_iterable(now.kernels.values())):
        yield NoRemedy(code, what, "the command computes in half precision already")
    else:
        how = remedies.autocast_line(now.facts.gpu.capability)
        yield _unless_switched(now, Change(code, what, how, switch="autocast"))


def _gradient_checkpointing(now: Situation) -> Changes:
    change = Change("gradient-checkpointing", "gradient checkpointing", "", switch="checkpointing")
    yield _unless_switched(now, change)


def _unless_switched(now: Situation, change: Change) -> Change | NoRemedy:
    if change.code in now.facts.switched:
        return NoRemedy(change.code, change.what, "the script uses it already")
    return change


def _chunked_loss(now: Situation) -> Changes:
    resize = remedies.chunked_loss(now.memory)
    if resize is not None:
        yield Change(
            "chunked-loss",
            "the loss in chunks",
            "a part of the tokens after the other under torch.utils.checkpoint, or Liger's fused "
            "cross-entropy",
            _resized(resize),
            is_estimate=True,
            basis=f"allocations of the logits' size in {remedies.CHUNKS} parts",
        )


def _eight_bit_states(now: Situation) -> Changes:
    name = _optimizer(now, remedies.EIGHT_BIT_OPTIMIZERS)
    if name is None:
        return
    after = now.memory.resized(remedies.eight_bit)
    tensors = max(1, now.memory.count_of(GRADIENTS))  # it updates one after the other
    yield Change(
        "optimizer-8bit",
        "8-bit optimizer states",
        f"bitsandbytes.optim.{name}8bit in place of {name}",
        _resized(remedies.eight_bit),
        updates.updated_by(_update_bytes(after), tensors),
        is_estimate=True,
        basis="arithmetic on the bytes of the states, 1 byte an element and 4 for each "
        f"{remedies.EIGHT_BIT_BLOCK}",
    )


def _sharded(now: Situation) -> Changes:
    """As few cards as make it fit, else the most."""
    if now.facts.ranks > 1:
        return
    whole = remedies.gathered_bytes(now.memory)
    bytes_per_s = efficiency_of(now.facts.gpu).peer_bytes_per_s * LINKS_REACHED[1]
    # Parameters are gathered twice.
    exchanged = 2 * now.memory.bytes_of(PARAMETERS) + now.memory.bytes_of(GRADIENTS)

    def sharded(cards: int, memory: Memory) -> Memory:
        memory = memory.resized(remedies.sharded(cards))
        more = memory.more_bytes + whole
        return replace(memory, card=memory.card.among(cards), more_bytes=more)

    for cards in _CARDS:
        yield Change(
            "fsdp",
            f"FSDP over {cards} cards",
            "torch.distributed.fsdp.fully_shard on each block and on the model, made on the host "
            "or the meta device",
            partial(sharded, cards),
            updates.shared_by(cards),
            exchanged * (cards - 1) / cards * now.parts / bytes_per_s,
            is_estimate=True,
            basis=f"1/{cards} of parameters, gradients and states, some blocks whole, NCCL's "
            "buffers; the exchange hidden by nothing",
        )


FREE = (_expandable_segments, _fused_optimizer, _smaller_evaluation)
MICRO_BATCHES = (_micro_batches,)
OF_THE_SCRIPT = (
    *(_last_result, _gradients_of_the_last_step),
    *(_mixed_precision, _chunked_loss, _gradient_checkpointing, _eight_bit_states),
)
SHARDED = (_sharded,)
