"""Libraries that open files in C++ or Rust, past Python: the paths they are given are redirected as they arrive."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from brimful_inside.probe.context import guarded
from brimful_inside.probe.hooks.import_hooks import waiting
from brimful_inside.probe.sandbox.overlay import Overlay
from brimful_inside.probe.sandbox.python_files import redirected


class Call(NamedTuple):
    """One function that takes a path."""

    name: str  # attribute of the module, dotted for a method
    argument: str  # the path's parameter
    position: int  # and its place, self included
    writes: bool
    keeps: bool = False  # what is in the file already stays
    mode: Optional[Tuple[str, int]] = None  # the parameter that says whether it writes, and its place: "r" does not
    told: bool = False  # what it reads may be a checkpoint that the script resumes from
    folder: bool = False  # the path is a folder, and the names of the files in it are the library's


# By module; a module's calls are redirected when it is imported.
CALLS: Dict[str, List[Call]] = {
    "torch": [
        Call("save", "f", 1, True),
        Call("load", "f", 0, False, told=True),
        Call("jit.save", "f", 1, True),
        Call("jit.load", "f", 0, False),
        Call("jit.ScriptModule.save", "f", 1, True),
        Call("export.save", "f", 1, True),
    ],
    "torch.serialization": [Call("save", "f", 1, True), Call("load", "f", 0, False, told=True)],
    "torch.onnx": [Call("export", "f", 2, True)],
    "safetensors": [Call("serialize_file", "filename", 1, True), Call("safe_open", "filename", 0, False)],
    "safetensors.torch": [Call("serialize_file", "filename", 1, True), Call("safe_open", "filename", 0, False)],
    "safetensors.numpy": [Call("serialize_file", "filename", 1, True), Call("safe_open", "filename", 0, False)],
    "tokenizers": [
        Call("Tokenizer.save", "path", 1, True),
        Call("Tokenizer.from_file", "path", 0, False),
        Call("Tokenizer.train", "files", 1, False),
        Call("models.Model.save", "folder", 1, True, folder=True),
    ],
    "cv2": [Call("imwrite", "filename", 0, True), Call("imread", "filename", 0, False)],
    "sqlite3": [Call("connect", "database", 0, True, True)],
    "h5py": [Call("File.__init__", "name", 1, True, True, ("mode", 2))],
    "torchaudio": [Call("save", "uri", 0, True), Call("load", "uri", 0, False)],
    "soundfile": [Call("write", "file", 0, True), Call("read", "file", 0, False)],
    "torchvision.io": [
        Call("write_png", "filename", 1, True),
        Call("write_jpeg", "filename", 1, True),
        Call("write_file", "filename", 0, True),
        Call("write_video", "filename", 0, True),
        Call("read_image", "path", 0, False),
    ],
    "pyarrow.parquet": [Call("ParquetWriter.__init__", "where", 1, True), Call("read_table", "source", 0, False)],
    "pyarrow.feather": [Call("write_feather", "dest", 1, True), Call("read_feather", "source", 0, False)],
}


def redirect_writers(context: Any) -> None:
    for module in CALLS:
        waiting.wait_for(module, functools.partial(_arrived, context, CALLS[module]))
    waiting.wait_for("subprocess", functools.partial(_tell_of_programs, context))
    waiting.wait_for("huggingface_hub.hf_api", functools.partial(_no_uploads, context))
    waiting.wait_for("datasets", functools.partial(_no_cached_maps, context))
    waiting.wait_for("tensorboard.compat", _no_tensorflow)


def _arrived(context: Any, calls: List[Call], module: Any) -> None:
    for call in calls:
        _redirect(context.overlay, module, call)


@guarded
def _redirect(overlay: Overlay, module: Any, call: Call) -> None:
    holder, names = module, call.name.split(".")
    for name in names[:-1]:
        holder = getattr(holder, name, None)
    original = getattr(holder, names[-1], None)
    if original is None or getattr(original, "_brimful_redirects", False):
        return
    setattr(holder, names[-1], _function(overlay, original, call))


def _function(overlay: Overlay, original: Callable[..., Any], call: Call) -> Callable[..., Any]:
    def redirecting(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _redirected_arguments(overlay, call, args, kwargs)
        return original(*args, **kwargs)

    with contextlib.suppress(AttributeError, TypeError):
        functools.update_wrapper(redirecting, original)
    redirecting._brimful_redirects = True  # type: ignore[attr-defined]
    return redirecting


def _redirected_arguments(overlay: Overlay, call: Call, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    writes = call.writes and _mode(call, args, kwargs) != "r"
    if call.argument in kwargs:
        return args, {**kwargs, call.argument: _redirected(overlay, call, kwargs[call.argument], writes)}
    if len(args) > call.position:
        new = _redirected(overlay, call, args[call.position], writes)
        return (*args[: call.position], new, *args[call.position + 1 :]), kwargs
    return args, kwargs


def _mode(call: Call, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> str:
    if call.mode is None:
        return ""
    name, position = call.mode
    return str(kwargs.get(name, args[position] if len(args) > position else "r"))


def _redirected(overlay: Overlay, call: Call, path: Any, writes: bool) -> Any:
    if isinstance(path, list):
        return [_redirected(overlay, call, one, writes) for one in path]
    if not isinstance(path, (str, bytes, os.PathLike)) or str(path).startswith((":memory:", "file:")):
        return path
    absolute = overlay.covered(path) if call.told else None
    if absolute is not None and overlay.where(absolute) == absolute:
        overlay.loaded(absolute)
    if call.folder:
        return _folder(overlay, path)
    return redirected(overlay, path, writes, call.keeps)


def _folder(overlay: Overlay, path: Any) -> Any:
    """The layer's own folder of that name; where the script sees no such folder, one that does not exist either."""
    absolute = overlay.covered(path)
    if absolute is None:
        return path
    if overlay.make_parent(os.path.join(absolute, "any")):
        overlay.tell(absolute)
    return overlay.upper(absolute)


# Programs that libraries start to learn something; they write nothing.
READERS = {
    *("git", "openssl", "uname", "ldconfig", "lscpu", "nvidia-smi", "which"),
    *("hostname", "id", "ls", "cat", "file", "nproc", "sysctl"),
}
COMPILERS = {"gcc", "g++", "cc", "c++", "clang", "clang++", "ld", "as", "nvcc", "ninja", "ptxas", "objdump", "readelf"}


def _tell_of_programs(context: Any, module: Any) -> None:
    """Programs that are not Python write where they like: that cannot be helped from here, and is told."""
    original = module.Popen.__init__

    @functools.wraps(original)
    def __init__(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        _tell_of_program(context, args)
        original(self, args, *rest, **kwargs)

    module.Popen.__init__ = __init__


@guarded
def _tell_of_program(context: Any, args: Any) -> None:
    first = args if isinstance(args, (str, bytes, os.PathLike)) else next(iter(args), "")
    words = os.fsdecode(first).split()
    name = os.path.basename(words[0]) if words else ""
    if not name.startswith("python") and name not in READERS and name not in COMPILERS:
        context.note("the script started the program %r: what other programs write is not kept out of the user's files" % name)


def _no_uploads(context: Any, module: Any) -> None:
    """A trial publishes nothing: what would have gone to the Hub is told and dropped."""
    api = getattr(module, "HfApi", None)
    for name in ("upload_file", "upload_folder", "upload_large_folder", "create_commit", "create_branch", "create_tag",
                 "delete_file", "delete_folder", "delete_repo", "create_repo"):  # fmt: skip
        if hasattr(api, name):
            setattr(api, name, _dropping(context, module, name, getattr(api, name)))


def _dropping(context: Any, module: Any, name: str, original: Any) -> Any:
    @functools.wraps(original)
    def drop(self: Any, *args: Any, **kwargs: Any) -> Any:
        context.note("the script's %s to the Hugging Face Hub was left out" % name)
        if name == "create_repo":
            repository = kwargs.get("repo_id") or (args[0] if args else "brimful/left-out")
            return module.RepoUrl("https://huggingface.co/%s" % repository)
        return None

    return drop


def _no_cached_maps(context: Any, module: Any) -> None:
    """On an imaginary card a mapped data set may hold what a model computed, so zeros: it must not stay in the user's cache."""
    if context.config.device == "imaginary" and hasattr(module, "disable_caching"):
        module.disable_caching()


def _no_tensorflow(module: Any) -> None:
    """TensorBoard writes by TensorFlow's C++ where that is installed, else by Python: its compat/__init__.py looks for notf."""
    module.notf = True
