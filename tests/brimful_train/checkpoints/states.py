"""States to save: strategies, and what it means that two of them are the same to the bit."""

import random
import struct
import zlib
from typing import Any

import torch
from hypothesis import strategies as st

DTYPES = [
    *(
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
    ),
    *(
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
        torch.complex32,
        torch.complex64,
        torch.complex128,
    ),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
]


def bits(tensor: torch.Tensor) -> bytes:
    plain = (
        tensor.detach()
        .resolve_conj()
        .resolve_neg()
        .clone(memory_format=torch.contiguous_format)
        .reshape(-1)
    )
    return bytes(plain.view(torch.uint8).tolist()) if plain.numel() else b""


def same(left: Any, right: Any) -> bool:
    """Types, keys and their order, and every bit of a number."""
    if isinstance(left, torch.Tensor):
        facts = (
            [(t.dtype, t.shape) for t in (left, right)]
            if isinstance(right, torch.Tensor)
            else [0, 1]
        )
        return facts[0] == facts[1] and bits(left) == bits(right)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=False)
        return len(left) == len(right) and all(
            same(k, m) and same(a, b) for (k, a), (m, b) in pairs
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return (
        struct.pack(">d", left) == struct.pack(">d", right)
        if isinstance(left, float)
        else left == right
    )


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any type and shape, any bits; some with gaps between their elements, some transposed, some
    with a gradient.
    """
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = torch.Size(shape).numel()
    content = bytearray(
        draw(st.binary(min_size=2 * size * dtype.itemsize, max_size=2 * size * dtype.itemsize))
    )
    if dtype is torch.bool:
        content = bytearray(byte % 2 for byte in content)
    flat = (
        torch.frombuffer(content, dtype=torch.uint8).view(dtype)
        if content
        else torch.empty(0, dtype=dtype)
    )
    form = draw(st.sampled_from(["dense", "gaps", "transposed"]))
    tensor = (
        flat[::2].reshape(shape)
        if form == "dense"
        else flat[::2].as_strided(shape, _strides(shape), 0)
    )
    return tensor.mT if form == "transposed" and len(shape) > 1 else tensor


def _strides(shape: list[int]) -> list[int]:
    """Of a tensor with a gap after each element."""
    strides, step = [], 2
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return strides[::-1]


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 3000), 1 << 3000),
    st.floats(),
    st.text(st.characters()),  # lone surrogates as well
    st.text(max_size=3).map("$".__add__),
)
KEYS = st.one_of(
    st.integers(),
    st.text(max_size=4),
    st.sampled_from(["$tensor", "$dict", "__metadata__", "a.b"]),
    st.tuples(st.integers()),
)
TREES = st.recursive(
    SCALARS | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)
STATES = st.dictionaries(
    st.sampled_from(["model", "optimizer", "sampler", "$odd", "a"]), TREES, max_size=4
)


def training_state(step: int) -> dict[str, Any]:
    """What a training has, small: every value depends on the step."""
    weight = torch.full((4, 3), float(step))
    return {
        "model": {
            "embedding.weight": weight,
            "head.weight": weight,
            "norm.bias": torch.arange(3) + step,
        },
        "optimizer": {
            "state": {0: {"step": torch.tensor(float(step)), "exp_avg": torch.zeros(4, 3)}},
            "lr": 1e-3 / (step + 1),
        },
        "random": random.Random(step).getstate(),
        "position": {"epoch": step // 10, "samples": step},
    }


def sealed(body: bytes) -> bytes:
    """An index with a right checksum, whatever stands in it."""
    return body[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(body[:-1])
