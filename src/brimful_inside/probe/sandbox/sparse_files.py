"""Checkpoints of a trial on an imaginary card: what its tensors hold is zeros, and zeros in a file
need no room on the disk.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Dict, List, Optional, Tuple

CHUNK = 1 << 20  # bytes that are a hole together
# What dtypes are called in the file, by torch's names and numpy's:
# https://github.com/huggingface/safetensors#format.
_DTYPES = {
    **{
        "bool": "BOOL",
        "uint8": "U8",
        "int8": "I8",
        "int16": "I16",
        "uint16": "U16",
        "int32": "I32",
        "uint32": "U32",
    },
    **{
        "int64": "I64",
        "uint64": "U64",
        "float16": "F16",
        "bfloat16": "BF16",
        "float32": "F32",
        "float64": "F64",
    },
}
_zeros = bytes(CHUNK)
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)


def with_holes(original: Any) -> Any:
    """`safetensors.serialize_file`, whose file has holes in the place of zeros. What is not known
    here, and what it refuses, it leaves to the original."""

    def serialize_file(
        tensor_dict: Any, filename: Any, metadata: Optional[Dict[str, str]] = None
    ) -> Any:
        tensors = [_tensor(name, spec) for name, spec in tensor_dict.items()]
        known = [tensor for tensor in tensors if tensor is not None]
        texts = all(
            isinstance(text, str) for text in (*(metadata or {}), *(metadata or {}).values())
        )
        if (
            len(known) < len(tensors)
            or not texts
            or not os.path.isdir(os.path.dirname(os.path.abspath(filename)))
        ):
            return original(tensor_dict, filename, metadata)
        return _write(
            sorted(known, key=lambda tensor: (-_bytes_each(tensor), tensor[0])), filename, metadata
        )

    return serialize_file


_Tensor = Tuple[
    str, str, List[int], int, int
]  # name, dtype, shape, where its bytes lie and how many


def _tensor(name: str, spec: Any) -> Optional[_Tensor]:
    """A tensor as releases name it: a `TensorSpec`, or a dictionary with its bytes."""
    if not isinstance(spec, dict):
        return name, spec.dtype, list(spec.shape), spec.data_ptr, spec.data_len
    data, dtype = spec["data"], _DTYPES.get(spec["dtype"])
    if dtype is None or not isinstance(data, bytes):
        return None
    return (
        name,
        dtype,
        list(spec["shape"]),
        ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0,
        len(data),
    )


def _bytes_each(tensor: _Tensor) -> int:
    """Of an element; the format wants tensors aligned, so that larger ones come first."""
    count = 1
    for size in tensor[2]:
        count *= size
    return tensor[4] // count if count else 0


def _write(tensors: List[_Tensor], filename: Any, metadata: Optional[Dict[str, str]]) -> None:
    header: Dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, dtype, shape, _, nbytes in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(filename, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for *_, pointer, nbytes in tensors:
            for at in range(0, nbytes, CHUNK):
                size = min(CHUNK, nbytes - at)
                if _memcmp(pointer + at, _zeros, size):
                    file.write(ctypes.string_at(pointer + at, size))
                else:
                    file.seek(size, os.SEEK_CUR)
        file.truncate()
