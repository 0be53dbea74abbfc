"""What a script asks for by name in its text, its files and its environment, as it is read, beside
what a loader or an optimizer was made with."""

import ast
import dataclasses
import importlib
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.audit.requests import requests_in
from brimful_inside.probe.script_text import definitions, recorders
from brimful_inside.wire import Asked
from tests.brimful.decide.builders import loader, optimizer, report, sample

# Stands for torch: what is made, and with what.
MADE = """
made = {}

class DataLoader:
    def __init__(self, data, batch_size=1, num_workers=0, shuffle=False):
        made.setdefault("batch_size", batch_size)
        made.setdefault("num_workers", num_workers)

def AdamW(parameters, lr=1e-3):
    made["lr"] = lr

def mem_get_info():
    return 4 << 30, 24 << 30

def go(accumulation, step=0):
    made["accumulation"] = accumulation
"""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """read(train=..., config=..., **files) -> the requests, by setting; the script is `train`."""

    def run(argv=(), env=None, **files):
        sources = {name.replace("__", "."): textwrap.dedent(text) for name, text in files.items()}
        paths = []
        for name, text in {"made_up_torch": MADE, **sources}.items():
            path = tmp_path / (name if "." in name else f"{name}.py")
            path.write_text(text)
            if path.suffix == ".py" and name in sources:
                paths.append(str(path))
                monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delitem(sys.modules, "made_up_torch", raising=False)
        importlib.invalidate_caches()
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py", *argv])
        for variable, text in (env or {}).items():
            monkeypatch.setenv(variable, text)
        monkeypatch.setattr(definitions.user_code, "loaded", lambda: paths)
        opened = {str(tmp_path / name): True for name in sources if "." in name}
        monkeypatch.setattr(definitions.config_files, "opened", opened)
        recorders._spots.clear()
        recorders.replaced.clear()
        source = (tmp_path / "train.py").read_bytes()
        exec(compile(recorded(source, "train.py"), "train.py", "exec"), {"__name__": "__main__"})
        made = importlib.import_module("made_up_torch").made
        asked = [*definitions.definitions(), *recorders.replaced.values()]
        one = loader(made.get("batch_size", 8), workers=made.get("num_workers", 0))
        optimizers = [optimizer((made["lr"],), made_with=made["lr"])] if "lr" in made else []
        batches = [made.get("accumulation", 1)] * 12
        seen = report([one], optimizers, micro_batches_per_step=batches, asked=asked)
        return {one.setting: one for one in requests_in(sample([seen]))}

    return run


def recorded(source, path):
    tree = ast.parse(source, path)
    recorders.record(tree, source, path)
    return ast.fix_missing_locations(tree)


def becomes(asked):
    return (asked.requested, asked.place, asked.effective, asked.changed_at)


# Where 64 stands, and how the script gets at it as `size`; the name is "batch_size" or has it.
LEAVES = {
    "a module": ("import config\nsize = config", {"config": "\nbatch_size_per_gpu = 64\n"}),
    "a class": (
        "from config import Config as size",
        {"config": "class Config:\n    batch_size = 64\n"},
    ),
    "a dataclass": (
        "from config import Config\nsize = Config()",
        {
            "config": """\
            from dataclasses import dataclass, field
            @dataclass
            class Config:
                lr: float = 1e-3
                batch_size: int = field(default=64)
            """
        },
    ),
    "an option's default": (
        """\
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--batch-size", "-b", type=int, default=64)
        size = parser.parse_args()
        """,
        {},
    ),
    "JSON": (
        "import json, types\nsize = types.SimpleNamespace(**json.load(open('run.json')))",
        {"run__json": '{\n  "model": "small",\n  "batch_size": 64\n}\n'},
    ),
    "YAML": (
        "import yaml, types\nsize = types.SimpleNamespace(**yaml.safe_load(open('run.yaml')))",
        {"run__yaml": "model: small\nbatch_size: 64  # a card\n"},
    ),
    "the environment": (
        """\
        import os, types
        size = types.SimpleNamespace(batch_size=int(os.environ.get("BATCH_SIZE", 8)))
        """,
        {},
    ),
    "a product": ("import config\nsize = config", {"config": "batch_size = 8 * 8\n"}),
    "a dictionary": (
        "import types\nsettings = {'batch_size': 64}\nsize = types.SimpleNamespace(**settings)",
        {},
    ),
}
PLACES = {
    "a module": "config.py:2",
    "a class": "config.py:2",
    "a dataclass": "config.py:5",
    "an option's default": "train.py:3",
    "JSON": "run.json:3",
    "YAML": "run.yaml:2",
    "the environment": "environment variable BATCH_SIZE",
    "a product": "config.py:1",
    "a dictionary": "train.py:2",
}
# How it becomes 2, with the line of the change below `size = ...`.
CAPS = {
    "min": ("n = min(SIZE, 2)", 1),
    "a limit by name": ("MAX_BATCH = 2\nn = min(MAX_BATCH, SIZE)", 2),
    "clip": ("clip = lambda x, low, high: max(low, min(x, high))\nn = clip(SIZE, 1, 2)", 2),
    "a conditional": ("n = SIZE if made_up_torch.mem_get_info()[0] > 8 << 30 else 2", 1),
    "a conditional the other way": (
        "n = 2 if made_up_torch.mem_get_info()[0] < 8 << 30 else SIZE",
        1,
    ),
    "an if": ("n_batch = SIZE\nif n_batch > 2:\n    n_batch = 2\nn = n_batch", 3),
    "an if and its else": (
        """\
        if made_up_torch.mem_get_info()[0] > 8 << 30:
            bs = SIZE
        else:
            bs = 2
        n = bs
        """,
        4,
    ),
    "an if, its elif and its else": (
        """\
        if made_up_torch.mem_get_info()[0] < 8 << 30:
            n = 2
        elif made_up_torch.mem_get_info()[0] < 16 << 30:
            n = min(SIZE, 4)
        else:
            n = SIZE
        """,
        2,
    ),
    "an elif": (
        """\
        if made_up_torch.mem_get_info()[0] > 8 << 30:
            n = SIZE
        elif made_up_torch.mem_get_info()[0] > 2 << 30:
            n = 2
        else:
            n = 1
        """,
        4,
    ),
    "a return": (
        """\
        def fitted():
            if made_up_torch.mem_get_info()[0] < 8 << 30:
                return 2
            return SIZE
        n = fitted()
        """,
        3,
    ),
    "an assignment to the settings": ("SIZE = 2\nn = SIZE", 1),
    "a function": ("def fitted(batch):\n    return min(batch, 2)\nn = fitted(SIZE)", 2),
}


def script(leaf, cap):
    head = textwrap.dedent(LEAVES[leaf][0]).rstrip()
    name = "size.batch_size_per_gpu" if leaf == "a module" else "size.batch_size"
    text, line = CAPS[cap] if cap else ("n = SIZE", 0)
    body = textwrap.dedent(text).rstrip().replace("SIZE", name)
    lines = ["import made_up_torch", *head.split("\n"), *body.split("\n")]
    lines.append("made_up_torch.DataLoader(None, batch_size=n)")
    return "\n".join(lines), 1 + len(head.split("\n")) + line


@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize("cap", [None, *CAPS])
def test_a_batch_size_is_a_request_wherever_it_stands_and_what_caps_it_is_found(read, leaf, cap):
    if leaf == "YAML":
        pytest.importorskip("yaml")
    train, line = script(leaf, cap)
    env = {"BATCH_SIZE": "64"} if leaf == "the environment" else {}
    place = (
        PLACES[leaf]
        if "train.py" not in PLACES[leaf]
        else f"train.py:{int(PLACES[leaf].split(':')[1]) + 1}"
    )
    found = read(train=train, env=env, **LEAVES[leaf][1])["batch_size"]
    expected = (64, place, 2, f"train.py:{line}") if cap else (64, place, 64, "")
    assert becomes(found) == expected
    assert (found.text != "") is bool(cap)


def test_the_expression_that_caps_is_quoted(read):
    train = """\
    from made_up_torch import DataLoader
    import config
    DataLoader(None,
               batch_size=min(config.batch_size,
                              2))
    """
    found = read(train=train, config="batch_size = 64")["batch_size"]
    assert (found.text, found.changed_at) == ("min(config.batch_size, 2)", "train.py:4")


@pytest.mark.parametrize(
    ("train", "config", "expected"),
    [
        (
            """\
            from made_up_torch import AdamW, go
            import config
            accumulation = max(config.accumulation, 16)
            AdamW(None, lr=5e-4)
            print(f"learning rate {config.learning_rate}")
            go(accumulation)
            """,
            "accumulation = 4\nlearning_rate = 1e-4\n",
            {
                "accumulation": (4, "config.py:1", 16, "train.py:3"),
                "lr": (1e-4, "config.py:2", 5e-4, "train.py:4"),
            },
        ),
        (
            """\
            from made_up_torch import DataLoader
            import config
            config.num_workers = 0
            DataLoader(None, config.batch, config.num_workers)
            """,
            "batch = 8\nnum_workers = 4\n",
            {
                "num_workers": (4, "config.py:2", 0, "train.py:3"),
                "batch_size": (8, "config.py:1", 8, ""),
            },
        ),
    ],
    ids=["an accumulation that is floored, a rate that nothing reads", "workers set to none"],
)
def test_what_the_script_sets_otherwise_is_found_at_its_line(read, train, config, expected):
    found = read(train=train, config=config)
    assert {name: becomes(found[name]) for name in expected} == expected
    assert "lr" not in expected or found["lr"].text == ""


# Scripts in which nothing stands between what is asked for and what is in force.
SOUND = {
    "a cap that does not bind": "DataLoader(None, batch_size=min(config.batch_size, 128))",
    "a conditional that leaves it": "DataLoader(None, batch_size=config.batch_size if 1 else 2)",
    "channels": "c = min(config.channels, 2)\nDataLoader(None, batch_size=2 * c)",
    "a share of each card": "DataLoader(None, batch_size=config.batch_size // 4)",
    "an evaluation with a batch of its own": (
        "DataLoader(None, config.batch_size)\nDataLoader(None, min(config.batch_size, 2))"
    ),
    "an evaluation batch size that is capped": (
        "n = min(config.eval_batch_size, 2)\nDataLoader(None, config.micro_batch)"
    ),
    "a return for another purpose": (
        "def size(train):\n    if train:\n        return config.batch_size\n    return 2\n"
        "DataLoader(None, size(True))\nDataLoader(None, size(False))"
    ),
    "a return that nothing else asks beside": (
        "def size():\n    return 2\nDataLoader(None, size())"
    ),
    "a return of a function within": (
        "def size():\n    def rank():\n        return 2\n    rank()\n    return config.batch_size\n"
        "DataLoader(None, 1 + 1)\nsize()"
    ),
    "a mode": "train = True\nDataLoader(None, config.batch_size if train else 2)",
    "two settings": "DataLoader(None, min(config.batch_size, config.micro_batch))",
    "a counter of batches": "batch = 64\nbatch = 2\nDataLoader(None, config.micro_batch)",
    "a learning rate that a schedule reads": (
        "AdamW(None, lr=5e-4)\nlater = [config.learning_rate * n for n in range(3)]"
    ),
    "two learning rates that nothing reads": "config.base_lr = 2e-4\nAdamW(None, lr=5e-4)",
    "a learning rate of a group": "groups = [{'params': 0, 'lr': 1e-5}]\nAdamW(groups, lr=1e-4)",
    "a function that a compiler traces": (
        "class M:\n    def forward(self):\n        return min(config.batch_size, 2)\n"
        "DataLoader(None, M().forward())"
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_where_nothing_is_capped_nothing_is_said(read, name):
    config = """\
    batch_size = 64
    eval_batch_size = 32
    micro_batch = 2
    channels = 3
    learning_rate = 1e-4
    """
    train = f"from made_up_torch import AdamW, DataLoader\nimport config\n{SOUND[name]}\n"
    found = read(train=train, config=config)
    assert {one.setting: becomes(one) for one in found.values() if one.changed_at} == {}


def test_a_script_without_such_names_runs_as_it_is():
    for source in (b"x = torch.max(batch, 1)\n", b"x = min(width, 2)\nprint(max(x, 3))\n"):
        assert not recorders.record(ast.parse(source), source, "train.py")


SOURCE = """
def f(batch_size, others, flag):
    calls.append("f")
    if flag:
        batch_size = 2
    n = min(pick(batch_size), 3, key=None) if flag else max(batch_size, *others)
    return [n, batch_size if flag else 2, clip(batch_size, 1, 8)]
"""


@given(st.integers(-9, 99), st.lists(st.integers(-9, 99), min_size=1, max_size=3), st.booleans())
def test_a_script_computes_the_same_with_recorders_as_without(size, others, flag):
    def outcome(code):
        calls = []
        names = {
            "calls": calls,
            "pick": lambda n: calls.append("pick") or n,
            "clip": lambda x, low, high: max(low, min(x, high)),
        }
        exec(compile(code, "f.py", "exec"), names)
        return names["f"](size, others, flag), calls

    assert outcome(recorded(SOURCE.encode(), "f.py")) == outcome(SOURCE)


def test_a_number_that_two_lines_may_have_changed_is_not_told():
    change = Asked("batch_size", "bs", 64, "", "replaced", 2, "a.py:1", "min(bs, 2)")
    both = [change, dataclasses.replace(change, changed_at="a.py:9")]
    assert len(requests_in(sample([report([loader(2, 512)], asked=both[:1])]))) == 1
    assert requests_in(sample([report([loader(2, 512)], asked=both)])) == ()
