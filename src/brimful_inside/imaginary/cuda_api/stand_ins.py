"""flash-attn, which is built for a card: a stand-in answers its import while the imaginary GPU is
there.

PyTorch has taken over its kernels (flash_attn/flash_attn_interface.py); so PyTorch's operations of
the same kernels run in their place, and operators/attention.py knows what those hold. Where the
library is installed, what the stand-in lacks is imported from there."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F

from brimful_inside import Refused
from brimful_inside.imaginary.operators.attention import HALVES
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import Tensor

Whole = Tuple[int, int]
NO_WINDOW = (-1, -1)
FLASH_SINCE = (8, 0)
#: By the name of the package: its distribution, and the version whose functions these are.
DISTRIBUTIONS = {"flash_attn": ("flash-attn", "2.8.3")}


class FlashAttention:
    """flash_attn's functions. Shapes: (batch, length, heads, head size), of variable lengths (all
    lengths together, heads, head size). Windows, slopes and caps change no memory."""

    def __init__(self, gpu: ImaginaryGpu):
        self._gpu = gpu

    def _run(
        self,
        parts: Sequence[Tensor],
        lengths: Sequence[Any],
        p: float,
        scale: Any,
        causal: bool,
        probs: bool,
    ) -> Any:
        gpu, size = self._gpu, parts[0].shape[-1]
        gpu.approximate("flash_attn")
        if gpu.machine.choose(lambda capability: capability < FLASH_SINCE):
            raise Refused(
                "FlashAttention only supports Ampere GPUs or newer, and the %s has compute "
                "capability %d.%d: choose another "
                'attention (of Transformers, attn_implementation="sdpa") or a newer card'
                % (gpu.card.name, *gpu.machine.capability)
            )
        if parts[0].dtype not in HALVES:
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        if size % 8:
            parts = [F.pad(part, (0, -size % 8)) for part in parts]
        scale = size**-0.5 if scale is None else scale
        out, sums = torch.ops.aten._flash_attention_forward(
            *parts, *lengths, p, causal, False, scale=scale
        )[:2]
        out = out[..., :size] if size % 8 else out
        return (out, sums, None) if probs else out

    def flash_attn_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: Optional[float] = None,
        causal: bool = False,
        window_size: Whole = NO_WINDOW,
        softcap: float = 0.0,
        alibi_slopes: Optional[Tensor] = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:
        lengths = (None, None, q.shape[1], k.shape[1])
        return self._run((q, k, v), lengths, dropout_p, softmax_scale, causal, return_attn_probs)

    def flash_attn_varlen_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: Optional[float] = None,
        causal: bool = False,
        window_size: Whole = NO_WINDOW,
        softcap: float = 0.0,
        alibi_slopes: Optional[Tensor] = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Optional[Tensor] = None,
    ) -> Any:
        lengths = (cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k))
        return self._run((q, k, v), lengths, dropout_p, softmax_scale, causal, return_attn_probs)

    def flash_attn_qkvpacked_func(self, qkv: Any, *args: Any, **options: Any) -> Any:
        return self.flash_attn_func(*qkv.unbind(-3), *args, **options)

    def flash_attn_kvpacked_func(self, q: Any, kv: Any, *args: Any, **options: Any) -> Any:
        return self.flash_attn_func(q, *kv.unbind(-3), *args, **options)

    def flash_attn_varlen_qkvpacked_func(
        self, qkv: Any, cu_seqlens: Any, max_seqlen: int, *args: Any, **options: Any
    ) -> Any:
        lengths: Any = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
        return self.flash_attn_varlen_func(*qkv.unbind(-3), *lengths, *args, **options)

    def flash_attn_varlen_kvpacked_func(self, q: Any, kv: Any, *args: Any, **options: Any) -> Any:
        return self.flash_attn_varlen_func(q, *kv.unbind(-3), *args, **options)

    def flash_attn_with_kvcache(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, *args: Any, **options: Any
    ) -> Tensor:
        self._gpu.approximate("flash_attn")
        return torch.empty_like(q)

    # flash_attn/bert_padding.py: which tokens are padding only the mask's values tell, so none are.

    def unpad_input(
        self, hidden_states: Tensor, attention_mask: Tensor, unused_mask: Optional[Tensor] = None
    ) -> Tuple[Any, ...]:
        self._gpu.approximate("flash_attn.bert_padding")
        batch, length = attention_mask.shape
        tokens = torch.arange(batch * length, device=hidden_states.device)
        starts = torch.arange(
            0, (batch + 1) * length, length, dtype=torch.int32, device=hidden_states.device
        )
        used = attention_mask.sum(-1, dtype=torch.int32)
        return (
            self.index_first_axis(hidden_states.flatten(0, 1), tokens),
            tokens,
            starts,
            length,
            used,
        )

    def pad_input(self, hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
        padded = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
        return padded.index_put((indices,), hidden_states).unflatten(0, (batch, seqlen))

    def index_first_axis(self, input: Tensor, indices: Tensor) -> Tensor:
        return input[indices]


def _modules(gpu: ImaginaryGpu) -> Dict[str, Dict[str, Any]]:
    """What is in each module of a stand-in, by the module's name."""
    flash = FlashAttention(gpu)
    public = {
        name: getattr(flash, name) for name in dir(FlashAttention) if not name.startswith("_")
    }
    attention = {
        name: function for name, function in public.items() if name.startswith("flash_attn")
    }
    return {
        "flash_attn": {"__version__": DISTRIBUTIONS["flash_attn"][1], **attention},
        "flash_attn.flash_attn_interface": attention,
        "flash_attn.bert_padding": {
            name: function for name, function in public.items() if name not in attention
        },
    }


class _Contents(Loader):
    def __init__(self, contents: Dict[str, Any]):
        self._contents = contents

    def exec_module(self, module: Any) -> None:
        vars(module).update(self._contents)


class _Distribution(importlib.metadata.Distribution):
    """What importlib.metadata says of a library that is not installed: Transformers asks it before
    it imports one."""

    def __init__(self, package: str):
        name, version = DISTRIBUTIONS[package]
        self._files = {
            "METADATA": "Name: %s\nVersion: %s\n" % (name, version),
            "top_level.txt": package,
        }

    def read_text(self, filename: str) -> Optional[str]:
        return self._files.get(filename)

    def locate_file(self, path: Any) -> Any:
        return path


class StandIns(MetaPathFinder):
    """Finds the modules of the stand-ins, and their metadata."""

    def __init__(self, gpu: ImaginaryGpu):
        self.modules = _modules(gpu)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        contents = self.modules.get(name)
        if contents is None:
            return None
        package = any(other.startswith(name + ".") for other in self.modules)
        spec = ModuleSpec(name, _Contents(contents), is_package=package)
        real = PathFinder.find_spec(name, path) if package else None
        if real is not None and spec.submodule_search_locations is not None:
            spec.submodule_search_locations.extend(real.submodule_search_locations or ())
        return spec

    def find_distributions(self, context: Any = None) -> Iterator[_Distribution]:
        asked = getattr(context, "name", None)
        for package, (name, _) in DISTRIBUTIONS.items():
            named = asked is None or re.sub(r"[-_.]+", "-", asked).lower() == name
            if named and PathFinder.find_spec(package) is None:
                yield _Distribution(package)


def stand_in(gpu: ImaginaryGpu) -> None:
    """The stand-ins are what an import finds, until the card is gone."""
    finder = StandIns(gpu)
    sys.meta_path.insert(0, finder)

    def take_back() -> None:
        sys.meta_path.remove(finder)
        for name in finder.modules:
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if isinstance(getattr(spec, "loader", None), _Contents):
                del sys.modules[name]

    gpu.patches.undo_by(take_back)
