"""What the engine takes from the rest of brimful, and what it says where its extra is missing."""

import subprocess
import sys

import grimp
import pytest

# Units, errors, values, the policy for the host's memory, the table of out-of-memory errors, the
# allocator's settings, and what a script says to a probe.
ALLOWED = {
    "brimful.units",
    "brimful.errors",
    "brimful.values",
    "brimful.decide.loading",
    "brimful.measure.host",
    "brimful_inside.simulator.allocator_settings",
    "brimful_inside.simulator.oom_patterns",
    "brimful_inside.script",
    "brimful_inside.signals",
    "brimful_inside.probe.context",
}


def taken_from_the_tool(graph: grimp.ImportGraph) -> set[str]:
    engine = [module for module in graph.modules if module.startswith("brimful_train")]
    taken = set().union(*map(graph.find_modules_directly_imported_by, engine)) - set(engine)
    # `brimful.values` is a package, by subject
    return {"brimful.values" if name.startswith("brimful.values") else name for name in taken}


def test_the_engine_takes_a_few_modules_of_the_tool_and_no_more():
    graph = grimp.build_graph("brimful", "brimful_inside", "brimful_train", cache_dir=None)
    assert taken_from_the_tool(graph) == ALLOWED
    graph.add_import(importer="brimful_train.task", imported="brimful.verbs.audit")
    assert taken_from_the_tool(graph) - ALLOWED == {"brimful.verbs.audit"}, "this test can fail"


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (["torch"], "brimful_train needs torch: pip install 'brimful[train]'"),
        (["numpy", "safetensors"], "needs numpy and safetensors: pip install 'brimful[train]'"),
    ],
)
def test_without_its_extra_the_import_says_what_to_install(missing: list[str], words: str):
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in missing)
    program = f"import sys; {blocked}import brimful_train"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("brimful_train.MissingExtra") and words in last
    caught = program.replace("import brimful_train", "\ntry:\n    import brimful_train\n")
    caught += "except ImportError:\n    print('no engine here')"
    done = subprocess.run([sys.executable, "-c", caught], capture_output=True, text=True)
    assert done.stdout == "no engine here\n"
