"""What a trace says of each allocation: module, line, forward or backward, and what it is. Peaks do
not change by it."""

import copy
import itertools
import os
import sysconfig

import pytest
import torch
from torch import nn

from brimful_inside.simulator.trace import At, Free, Malloc, Site, Tag

from .training import Net, traced, train


class Read:
    """The trace of `work()` by allocation: its row, its site, its tag."""

    def __init__(self, work):
        trace, _ = traced(work)
        sites = {note.number: note for _, note in trace.notes if isinstance(note, Site)}
        self.tags, self.allocations, at = {}, [], None
        notes = list(trace.notes)
        for number, row in enumerate([*trace.rows, None]):
            while notes and notes[0][0] <= number:
                _, note = notes.pop(0)
                at = note.number if isinstance(note, At) else at
                if isinstance(note, Tag):
                    self.tags[note.id] = note
            if isinstance(row, Malloc):
                self.allocations.append((row, sites[at]))

    def where(self, op, during):
        return [
            site.module for row, site in self.allocations if op in row.op and site.during == during
        ]

    def tagged(self, category):
        return [tag.module for tag in self.tags.values() if tag.category == category]


def test_each_operation_belongs_to_a_module_by_its_path_forward_and_backward():
    read = Read(lambda: train(Net(), steps=1))
    layers = [f"layers.{i}" for i in range(3)]
    assert read.where("gelu", "forward") == layers, "a function is the module's that calls it"
    assert read.where("gelu_backward", "backward") == layers[::-1]
    products = [f"layers.{i}.{name}" for i in range(3) for name in ("first", "second")]
    assert read.where("addmm", "forward") == [*products, "head"]
    assert list(dict.fromkeys(read.where("aten.mm", "backward"))) == ["head", *products[::-1]]
    assert set(read.where("batch_norm_backward", "backward")) == {"norm"}
    assert {site.model for _, site in read.allocations if site.module} == {"Net"}
    assert not read.where("gelu", "") and "" in read.where("_foreach", "optimizer")


def test_the_line_is_the_users_own_with_its_text():
    read = Read(lambda: train(Net(), steps=1))
    lines = {site.during: site.where for row, site in read.allocations if "gelu" in row.op}
    assert lines["forward"].startswith("training.py:") and lines["forward"].endswith(
        " in forward: return data + self.second(self.drop(F.gelu(self.first(data))))"
    )
    assert lines["backward"].endswith(" in train: loss.backward()")
    steps = {site.where for _, site in read.allocations if site.during == "optimizer"}
    assert len(steps) == 1 and steps.pop().endswith(" in train: optimizer.step()")


class CallsTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Sequential(nn.Linear(64, 64), nn.GELU()), nn.Tanh())

    def forward(self, data):
        first = self.inner(data)
        doubled = first * 2
        return self.inner(doubled)


def test_each_line_that_calls_a_librarys_modules_has_what_they_allocate():
    def work():
        net, data = CallsTwice().cuda(), torch.zeros(4, 64, device="cuda")
        for _ in range(2):
            net(data)

    lines = [
        (site.where.rpartition(": ")[2], row.op.split(".")[1])
        for row, site in Read(work).allocations
        if site.during == "forward" and row.workspace is None
    ]
    inner = ("addmm", "gelu", "tanh")
    first = [("first = self.inner(data)", op) for op in inner]
    second = [("return self.inner(doubled)", op) for op in inner]
    assert lines == 2 * [*first, ("doubled = first * 2", "mul"), *second]


def test_an_allocation_has_a_category_and_the_module_that_owns_it():
    read = Read(lambda: train(Net()))
    owners = [f"layers.{i}.{name}" for i in range(3) for name in ("first", "second")]
    owners += ["norm", "head"]
    assert read.tagged("parameter") == [owner for owner in owners for _ in ("weight", "bias")]
    for category in ("optimizer_state", "gradient"):  # of gradients: two steps, anew in each
        assert sorted(read.tagged(category)) == sorted(4 * owners)
    assert set(read.tagged("buffer")) == {"norm"} and len(read.tagged("input")) == 4


def test_tied_weights_count_once_and_a_copy_of_a_model_has_no_category():
    def work():
        net = Net()
        net.layers[1] = net.layers[0]
        net.cuda()
        average = copy.deepcopy(net)
        train(net)
        del average

    read = Read(work)
    assert read.tagged("parameter").count(
        "layers.0.first"
    ) == 2 and "layers.1.first" not in read.tagged("parameter")
    assert "layers.0.first" in read.tagged(
        "optimizer_state"
    ) and "layers.1.first" not in read.tagged("optimizer_state")
    copies = [row.id for row, site in read.allocations if "deepcopy" in site.where]
    assert copies and not set(copies) & set(read.tags)


def test_two_models_of_one_class_get_names_of_their_own():
    def work():
        model, other = (
            nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda(),
            nn.Sequential(nn.Linear(8, 8), nn.ReLU()).cuda(),
        )
        other(model(torch.zeros(4, 8, device="cuda"))).sum().backward()

    read = Read(work)
    relus, backward = (
        [(site.model, site.module) for row, site in read.allocations if op in row.op]
        for op in ("relu", "threshold_backward")
    )
    assert relus == backward[::-1] == [("Sequential", "1"), ("Sequential#2", "1")]


def test_recomputation_is_not_counted_as_forward():
    read = Read(lambda: train(Net(checkpoints=True), steps=1))
    layers = [f"layers.{i}" for i in range(3)]
    assert read.where("gelu.default", "forward") == layers
    assert read.where("gelu.default", "recomputation") == layers[::-1]


def moments(trace):
    """The rows, where tensors that die at one moment (in the garbage collector) may do so in any
    order."""
    groups = itertools.groupby(trace.rows, key=lambda row: isinstance(row, Free))
    return [sorted(rows) if frees else list(rows) for frees, rows in groups]


@pytest.mark.parametrize("checkpoints", [False, True])
def test_the_program_is_the_same_without_annotations(checkpoints):
    def work():
        torch.manual_seed(0)
        train(Net(checkpoints))

    annotated, without = traced(work)[0], traced(work, annotations=False)[0]
    assert moments(annotated) == moments(without)
    assert annotated.notes and not without.notes


def test_an_exception_leaves_no_module_behind():
    def work():
        with pytest.raises(RuntimeError):
            nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 6)).cuda()(torch.zeros(2, 3, device="cuda"))
        kept.append(torch.zeros(10, device="cuda"))

    kept = []
    row, site = Read(work).allocations[-1]
    assert "zeros" in row.op and (site.model, site.during) == ("", "")


class Shares(nn.Module):
    def __init__(self):
        super().__init__()
        act = nn.GELU()
        self.first, self.second = (nn.Sequential(nn.Linear(64, 64), act) for _ in range(2))
        self.own = nn.GELU()

    def forward(self, data):
        return self.own(self.second(self.first(data)))


def test_what_an_activation_in_several_places_takes_belongs_to_each_place():
    read = Read(lambda: train(Shares(), steps=1))
    assert read.where("gelu", "forward") == ["first", "second", "own"]


def test_an_entry_point_of_a_package_is_no_line_of_the_script(tmp_path):
    program = os.path.join(sysconfig.get_path("scripts"), "my-train")
    work = compile("train(net, steps=1)", program, "exec")
    read = Read(lambda: exec(work, {"train": train, "net": Net()}))
    assert not any(site.where.startswith("my-train") for _, site in read.allocations)
