"""Finds a card of the catalogue, and describes one that it does not have."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from brimful.errors import NoSuchDevice, UsageError
from brimful.measure.gpus.cards import CARDS
from brimful.units import format_bytes, parse_bytes
from brimful.values import Card, Estimate, Gpu, Source

# A custom card is an RTX 3090 in all but its memory: most kernels of PyTorch behave alike from
# capability 8.0 on.
_STAND_IN = "rtx3090"
_UNKNOWN = "an RTX 3090's, since nothing is known of this card"

# Short names for which one card is the ordinary meaning. Names that mean two sizes ("a100") get the
# larger share of users.
_SHORT = {
    "a100": "a100-40gb",
    "a100-sxm4-40gb": "a100-40gb",
    "a100-pcie": "a100-40gb-pcie",
    "a100-pcie-40gb": "a100-40gb-pcie",
    "a100-pcie-80gb": "a100-80gb-pcie",
    "a100-80gb-sxm": "a100-80gb",
    "v100": "v100-16gb",
    "h100-80gb": "h100",
    "h100-sxm": "h100",
    "h200-141gb": "h200",
    "rtx3080": "rtx3080-10gb",
    "rtx3060": "rtx3060-12gb",
    "rtxa6000": "a6000",
    "rtxa5000": "a5000",
    "rtxa4000": "a4000",
    "6000ada": "rtx6000-ada",
}
_RATES = ("bandwidth_bytes_per_s", "fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops")


def find_gpu(name: str) -> Gpu:
    """The card called `name`: its key, its name as CUDA shows it, or a short name; case and spaces
    do not matter.

    Raises NoSuchDevice with the nearest names.
    """
    card = _by_name().get(_plain(name))
    if card is None:
        raise NoSuchDevice(name, [card.key for card in CARDS])
    return card


def others_named(name: str) -> list[str]:
    """Where a name alone means several cards ("a100"), the keys of those that were not taken."""
    taken, plain = _by_name().get(_plain(name)), _plain(name)
    if taken is None or plain not in map(_plain, _SHORT):
        return []
    return [c.key for c in CARDS if c is not taken and _plain(c.key).startswith(plain)]


def custom_gpu(memory: str | int, name: str | None = None) -> Gpu:
    """A card with `memory` usable bytes ("20GiB", or a number of bytes), for a card that the
    catalogue lacks.

    Everything but the memory is assumed: compute capability, multiprocessors and rates are those of
    an RTX 3090. Raises UsageError when `memory` is no size or leaves nothing beside the context.
    """
    total = memory if isinstance(memory, int) else parse_bytes(memory)
    stand_in = find_gpu(_STAND_IN)
    if total <= (stand_in.context_bytes.low or 0):
        raise UsageError(
            f"A card with {format_bytes(total)} has no room for a CUDA context.",
            suggestion="Give its memory, as in --gpu-memory 20GiB.",
        )
    return replace(
        stand_in,
        key=_plain(name) if name else f"custom-{format_bytes(total).replace(' ', '').lower()}",
        name=name or f"a card with {format_bytes(total)}",
        total_bytes=Estimate(total, Source.ASSUMED, note="as given with --gpu-memory"),
        peer_bytes_per_s=None,
        **{
            rate: Estimate(getattr(stand_in, rate).value, Source.ASSUMED, note=_UNKNOWN)
            for rate in _RATES
        },
    )


def to_card(gpu: Gpu, others: Sequence[tuple[int, int]] = ()) -> Card:
    """What a child process must know of the card to imagine it. `others`: capabilities of cards
    that it may speak for.
    """
    return Card(
        name=gpu.name,
        total_bytes=int(gpu.total_bytes.value),
        context_bytes=int(gpu.context_bytes.value),
        capability=list(gpu.capability),
        multiprocessors=gpu.multiprocessors,
        others=[list(capability) for capability in others],
        **_rates(gpu),
    )


def _rates(gpu: Gpu) -> dict[str, Any]:
    """What the card's clock runs by; nothing where the rates are another card's."""
    peaks = {
        "fp32": gpu.fp32_flops,
        "tf32": gpu.tf32_flops,
        "fp16": gpu.fp16_flops,
        "bf16": gpu.bf16_flops,
    }
    if gpu.bandwidth_bytes_per_s.source is Source.ASSUMED:
        reached = {
            kind: gpu.reached[kind + "_flops"] for kind in peaks if kind + "_flops" in gpu.reached
        }
        bandwidth = gpu.reached.get("bandwidth_bytes_per_s")
        return {"bandwidth_bytes_per_s": bandwidth, "flops": reached} if bandwidth else {}
    clock = gpu.sustained_clock.value if gpu.sustained_clock else 1.0
    return {
        "bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s.value,
        "flops": {kind: clock * rate.value for kind, rate in peaks.items() if rate is not None},
    }


@cache
def _by_name() -> dict[str, Gpu]:
    keys = {card.key: card for card in CARDS}
    # of two cards with one name, the first one
    by_name = {_plain(card.name): card for card in reversed(CARDS)}
    by_name.update({_plain(short): keys[key] for short, key in _SHORT.items()})
    return {**by_name, **{_plain(key): card for key, card in keys.items()}}


def _plain(name: str) -> str:
    """Lower case, letters and digits alone, without the maker's words: "NVIDIA GeForce RTX 3090" is
    "rtx3090".
    """
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\b(nvidia|geforce|tesla|quadro)\b", " ", name.lower()))
