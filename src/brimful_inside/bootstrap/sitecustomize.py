"""Python runs this file at the start of every process with this folder on its path; without a trial
config it does nothing. It loads our package by its place in the file system, so nothing of ours
stays on `sys.path`, and then runs the `sitecustomize` that it hides, if any. Written for any
Python, since whatever interpreter the command starts reads it."""

import os
import sys


def _start_probe():
    import importlib.util

    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if "brimful_inside" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "brimful_inside", os.path.join(home, "__init__.py"), submodule_search_locations=[home]
        )
        if spec is None or spec.loader is None:
            raise ImportError("no package brimful_inside in " + home)
        package = importlib.util.module_from_spec(spec)
        sys.modules["brimful_inside"] = package
        spec.loader.exec_module(package)
    from brimful_inside.probe.entry import start

    start()


def _write_error(config_path):
    """No import of ours works: the reason goes beside the trial config, where the parent looks for
    it."""
    import traceback

    try:
        path = os.path.join(os.path.dirname(config_path), "probe-error-%d.txt" % os.getpid())
        with open(path, "w") as file:
            file.write("%s\n%s" % (sys.version, traceback.format_exc()))
    except Exception:
        pass


def _run_hidden_sitecustomize():
    """The sitecustomize that Python would find without us (Debian's Python has one) takes our
    place."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [p for p in sys.path if os.path.realpath(p or os.curdir) != os.path.realpath(here)]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("BRIMFUL_TRIAL_CONFIG"):
    try:
        _start_probe()
    except Exception:
        _write_error(os.environ["BRIMFUL_TRIAL_CONFIG"])
        if os.environ.get("BRIMFUL_SHARED_IMPORTS"):
            os._exit(1)  # it is not there to run the script
_run_hidden_sitecustomize()
