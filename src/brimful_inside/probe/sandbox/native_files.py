"""The sandbox of a trial: writes stay out of the user's files, and its numbers out of the user's
experiment trackers. `python_files` patches what Python writes; here are the libraries that open
files in C++ or Rust."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import math
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from brimful_inside.probe.context import ProcessContext, guarded, patch
from brimful_inside.probe.import_hooks import import_hooks
from brimful_inside.probe.sandbox.overlay import Overlay
from brimful_inside.probe.sandbox.python_files import patch_python_files, path_for

# Experiment trackers are off in a trial: its numbers are not the user's. Each switch as its makers
# document it.
TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",  # 3.43 and later
    "COMET_AUTO_LOG_DISABLE": "1",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",  # transformers' callback
    "CODECARBON_SAVE_TO_FILE": "false",
    "DO_NOT_TRACK": "1",
}


class Call(NamedTuple):
    """One function that takes a path."""

    name: str  # attribute of the module, dotted for a method
    argument: str  # the path's parameter
    position: int  # and its place, self included
    writes: bool
    keeps: bool = False  # what is in the file already stays
    has_mode: bool = False  # the parameter `mode` follows: "r" does not write
    resumes: bool = False  # what it reads may be a checkpoint that the script resumes from
    folder: bool = False  # the path is a folder, and the names of the files in it are the library's


SAFETENSORS_MODULES = ("safetensors", "safetensors.torch", "safetensors.numpy")
SAFETENSORS = [Call("serialize_file", "filename", 1, True), Call("safe_open", "filename", 0, False)]
# By module; a module's calls are redirected when it is imported.
CALLS: Dict[str, List[Call]] = {
    "torch": [
        Call("save", "f", 1, True),
        Call("load", "f", 0, False, resumes=True),
        Call("jit.save", "f", 1, True),
        Call("jit.load", "f", 0, False),
        Call("jit.ScriptModule.save", "f", 1, True),
        Call("export.save", "f", 1, True),
    ],
    "torch.serialization": [Call("save", "f", 1, True), Call("load", "f", 0, False, resumes=True)],
    "torch.onnx": [Call("export", "f", 2, True)],
    **dict.fromkeys(SAFETENSORS_MODULES, SAFETENSORS),
    "tokenizers": [
        Call("Tokenizer.save", "path", 1, True),
        Call("Tokenizer.from_file", "path", 0, False),
        Call("Tokenizer.train", "files", 1, False),
        Call("models.Model.save", "folder", 1, True, folder=True),
    ],
    "cv2": [Call("imwrite", "filename", 0, True), Call("imread", "filename", 0, False)],
    "h5py": [Call("File.__init__", "name", 1, True, True, has_mode=True)],
    "torchaudio": [Call("save", "uri", 0, True), Call("load", "uri", 0, False)],
    "soundfile": [Call("write", "file", 0, True), Call("read", "file", 0, False)],
    "torchvision.io": [
        Call("write_png", "filename", 1, True),
        Call("write_jpeg", "filename", 1, True),
        Call("write_file", "filename", 0, True),
        Call("write_video", "filename", 0, True),
        Call("read_image", "path", 0, False),
    ],
    "pyarrow": [Call("memory_map", "path", 0, True, True, has_mode=True)],
    "pyarrow.parquet": [
        Call("ParquetWriter.__init__", "where", 1, True),
        Call("ParquetFile.__init__", "source", 1, False),
        Call("read_table", "source", 0, False),
    ],
    "pyarrow.feather": [
        Call("write_feather", "dest", 1, True),
        Call("read_feather", "source", 0, False),
    ],
}


def keep_writes_out(context: ProcessContext) -> None:
    """Called before the script's first line."""
    _switch_off_trackers(context.config.folder)
    overlay = context.overlay = Overlay(context.config.folder)
    patch_python_files(overlay)
    if context.config.device == "imaginary":
        for module in SAFETENSORS_MODULES:
            import_hooks.when_imported(module, _leave_holes)
    for module, calls in CALLS.items():
        for call in calls:
            import_hooks.when_imported(module, functools.partial(_redirect, overlay, call))
    import_hooks.when_imported("sqlite3", functools.partial(_redirect_sqlite, overlay))
    import_hooks.when_imported("subprocess", functools.partial(_note_programs, context))
    import_hooks.when_imported("huggingface_hub.hf_api", functools.partial(_drop_uploads, context))
    if context.config.device == "imaginary":
        # A mapped data set may hold what a model computed, so zeros: it must not stay in the user's
        # cache.
        import_hooks.when_imported("datasets", lambda module: module.disable_caching())
    # TensorBoard writes by TensorFlow's C++ where that is installed, else by Python: its
    # compat/__init__.py imports notf.
    import_hooks.when_imported("tensorboard.compat", lambda module: setattr(module, "notf", True))


@guarded
def _redirect_sqlite(overlay: Overlay, module: Any) -> None:
    from brimful_inside.probe.sandbox.sqlite_files import redirect_connections

    redirect_connections(overlay, module)


def move_layer(context: ProcessContext) -> None:
    """What is written from here on lies in the folder of this trial."""
    _switch_off_trackers(context.config.folder)
    context.overlay.lie_in(context.config.folder)


def _switch_off_trackers(folder: str) -> None:
    """By environment, so that child processes obey as well. MLflow has no switch: it writes to the
    trial's folder. No byte code is written beside the user's modules either."""
    os.environ.update(TRACKERS_OFF)
    os.environ["MLFLOW_TRACKING_URI"] = "file:" + os.path.join(folder, "kept_out", "mlruns")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True


@guarded
def _redirect(overlay: Overlay, call: Call, module: Any) -> None:
    holder, names = module, call.name.split(".")
    for name in names[:-1]:
        holder = getattr(holder, name, None)
    original = getattr(holder, names[-1], None)
    if original is None or getattr(original, "_brimful_redirects", False):
        return

    def redirecting(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _redirected_arguments(overlay, call, args, kwargs)
        return original(*args, **kwargs)

    with contextlib.suppress(AttributeError, TypeError):
        functools.update_wrapper(redirecting, original)
    redirecting._brimful_redirects = True  # type: ignore[attr-defined]
    setattr(holder, names[-1], redirecting)


def _leave_holes(module: Any) -> None:
    original = getattr(module, "serialize_file", None)
    if original is not None and not getattr(
        original, "_brimful_redirects", False
    ):  # those that took it from the first
        module.serialize_file = functools.partial(with_holes, original)


def _redirected_arguments(
    overlay: Overlay, call: Call, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    mode = (
        kwargs.get("mode", args[call.position + 1] if len(args) > call.position + 1 else "r")
        if call.has_mode
        else "w"
    )
    writes = call.writes and mode != "r"
    if call.argument in kwargs:
        return args, {
            **kwargs,
            call.argument: _redirected(overlay, call, kwargs[call.argument], writes),
        }
    if len(args) > call.position:
        new = _redirected(overlay, call, args[call.position], writes)
        return (*args[: call.position], new, *args[call.position + 1 :]), kwargs
    return args, kwargs


def _redirected(overlay: Overlay, call: Call, path: Any, writes: bool) -> Any:
    if isinstance(path, list):
        return [_redirected(overlay, call, part, writes) for part in path]
    if not isinstance(path, (str, bytes, os.PathLike)) or str(path).startswith(
        (":memory:", "file:")
    ):
        return path
    absolute = overlay.paths.covered(path) if call.resumes else None
    if absolute is not None and overlay.where(absolute) == absolute:
        overlay.loaded(absolute)
    if not call.folder:
        return path_for(overlay, path, writes, call.keeps)
    absolute = overlay.paths.covered(path)
    if absolute is None:
        return path
    if overlay.make_parent(
        os.path.join(absolute, "any")
    ):  # else the script sees no such folder: upper does not exist either
        overlay.list_written(absolute)
    return overlay.upper(absolute)


# Checkpoints of a trial on an imaginary card: what its tensors hold is zeros, and zeros in a file
# need no room on the disk.
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


def with_holes(
    original: Any, tensor_dict: Any, filename: Any, metadata: Optional[Dict[str, str]] = None
) -> Any:
    """`safetensors.serialize_file`, whose file has holes in the place of zeros. What is not known
    here, and what it refuses, it leaves to the original."""
    tensors = [_tensor(name, spec) for name, spec in tensor_dict.items()]
    known = [tensor for tensor in tensors if tensor is not None]
    texts = all(isinstance(text, str) for text in (*(metadata or {}), *(metadata or {}).values()))
    if (
        len(known) < len(tensors)
        or not texts
        or not os.path.isdir(os.path.dirname(os.path.abspath(filename)))
    ):
        return original(tensor_dict, filename, metadata)
    return _write(
        sorted(known, key=lambda tensor: (-_bytes_each(tensor), tensor[0])), filename, metadata
    )


# name, dtype, shape, where its bytes lie and how many
_Tensor = Tuple[str, str, List[int], int, int]


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
    count = math.prod(tensor[2])
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


# Programs that libraries start to read something; they write nothing.
READERS = {
    *("git", "openssl", "uname", "ldconfig", "lscpu", "nvidia-smi", "which"),
    *("hostname", "id", "ls", "cat", "file", "nproc", "sysctl"),
}
COMPILERS = {
    "gcc",
    "g++",
    "cc",
    "c++",
    "clang",
    "clang++",
    "ld",
    "as",
    "nvcc",
    "ninja",
    "ptxas",
    "objdump",
    "readelf",
}


@guarded
def _note_program(context: ProcessContext, args: Any) -> None:
    """Programs that are not Python write where they like: the probe cannot prevent that, and a note
    warns of it.
    """
    first = args if isinstance(args, (str, bytes, os.PathLike)) else next(iter(args), "")
    words = os.fsdecode(first).split()
    name = os.path.basename(words[0]) if words else ""
    if not name.startswith("python") and name not in READERS and name not in COMPILERS:
        context.note(
            "the script started the program %r: what other programs write is not kept out of the "
            "user's files" % name
        )


def _note_programs(context: ProcessContext, module: Any) -> None:
    def start(original: Any, process: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        _note_program(context, args)
        if kwargs.get("cwd") is not None and context.overlay is not None:
            kwargs["cwd"] = path_for(
                context.overlay, kwargs["cwd"], writes=False
            )  # the system changes to it
        original(process, args, *rest, **kwargs)

    patch(module.Popen, "__init__", start)


def _drop_uploads(context: ProcessContext, module: Any) -> None:
    """A trial publishes nothing: it drops what would have gone to Hugging Face, with a note."""

    def drop(name: str, original: Any, api: Any, *args: Any, **kwargs: Any) -> Any:
        context.note("the script's %s to the Hugging Face Hub was left out" % name)
        if name == "create_repo":
            return module.RepoUrl(
                "https://huggingface.co/%s"
                % (kwargs.get("repo_id") or (*args, "brimful/left-out")[0])
            )
        return None

    for name in (
        "upload_file",
        "upload_folder",
        "upload_large_folder",
        "create_commit",
        "create_branch",
        "create_tag",
        "delete_file",
        "delete_folder",
        "delete_repo",
        "create_repo",
    ):
        patch(getattr(module, "HfApi", None), name, functools.partial(drop, name))
