"""torch._dynamo's stand-in: settings without the package, and one package however it is asked for."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

BEGIN = """
    import importlib.util
    import sys
    import torch
    from brimful_inside import imaginary
    from brimful_inside.wire import Card

    gpu = imaginary.enter(Card("x", 40 << 30, 0, [8, 0], 108))
"""
SETTINGS = {
    "by attribute": "import torch._dynamo; config = torch._dynamo.config",
    "by import": "import torch._dynamo.config; config = torch._dynamo.config",
    "from the package": "from torch._dynamo import config",
}


def printed(source: str) -> list[str]:
    whole = textwrap.dedent(BEGIN) + textwrap.dedent(source)
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("how", SETTINGS)
def test_settings_that_a_script_makes_are_those_of_the_real_package_when_it_comes(how):
    assert printed(f"""
    {SETTINGS[how]}
    config.suppress_errors = True
    print("torch._dynamo.convert_frame" in sys.modules, "sympy" in sys.modules)
    torch._dynamo.list_backends
    from torch._dynamo import convert_frame
    print(convert_frame.config is config is torch._dynamo.config, torch._dynamo.config.suppress_errors)
    """) == ["False", "False", "True", "True"]


def test_a_submodule_that_is_imported_is_the_one_that_the_package_uses():
    assert printed("""
    import torch._dynamo.exc
    from torch._dynamo import convert_frame
    import torch._dynamo.utils as utils
    print(convert_frame.Unsupported is torch._dynamo.exc.Unsupported, convert_frame.counters is utils.counters)
    print(torch._dynamo.exc.__spec__.loader is not None, sys.modules["torch._dynamo"].__spec__.origin is not None)
    """) == ["True", "True", "True", "True"]


def test_a_submodule_that_is_not_there_is_not_found_and_the_stand_ins_can_be_looked_for():
    assert printed("""
    print(importlib.util.find_spec("torch._dynamo") is not None)
    print(importlib.util.find_spec("torch.fx.experimental.symbolic_shapes") is not None)
    try:
        import torch._dynamo.nothing_of_that_name
    except ModuleNotFoundError as error:
        print(error.name)
    """) == ["True", "True", "torch._dynamo.nothing_of_that_name"]


def test_after_leaving_the_real_package_is_imported():
    assert printed("""
    before = len(sys.meta_path)
    gpu.leave()
    import torch._dynamo
    print(len(sys.meta_path) - before, type(sys.modules["torch._dynamo"]).__name__, "torch._dynamo.exc" in sys.modules)
    """) == ["-1", "module", "True"]
