"""The sandbox of a trial: writes stay out of the user's files, and its numbers out of the user's
experiment trackers. `python_files` patches what Python writes; here are the libraries that open
files in C++ or Rust."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import Any, Dict, List, NamedTuple, Tuple

from brimful_inside.probe.context import ProcessContext, guarded, patch
from brimful_inside.probe.import_hooks import import_hooks
from brimful_inside.probe.sandbox.overlay import Overlay
from brimful_inside.probe.sandbox.python_files import patch_python_files, path_for
from brimful_inside.probe.sandbox.sparse_files import with_holes

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
    "sqlite3": [Call("connect", "database", 0, True, True)],
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
    import_hooks.when_imported("subprocess", functools.partial(_note_programs, context))
    import_hooks.when_imported("huggingface_hub.hf_api", functools.partial(_drop_uploads, context))
    if context.config.device == "imaginary":
        # A mapped data set may hold what a model computed, so zeros: it must not stay in the user's
        # cache.
        import_hooks.when_imported("datasets", lambda module: module.disable_caching())
    # TensorBoard writes by TensorFlow's C++ where that is installed, else by Python: its
    # compat/__init__.py imports notf.
    import_hooks.when_imported("tensorboard.compat", lambda module: setattr(module, "notf", True))


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
        module.serialize_file = with_holes(original)


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
    absolute = overlay.covered(path) if call.resumes else None
    if absolute is not None and overlay.where(absolute) == absolute:
        overlay.loaded(absolute)
    if not call.folder:
        return path_for(overlay, path, writes, call.keeps)
    absolute = overlay.covered(path)
    if absolute is None:
        return path
    if overlay.make_parent(
        os.path.join(absolute, "any")
    ):  # else the script sees no such folder: upper does not exist either
        overlay.list_written(absolute)
    return overlay.upper(absolute)


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
