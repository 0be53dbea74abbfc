"""Which plan a run trains under, and the errors where plan, command and machine disagree."""

import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.codec import SCHEMA
from brimful.command import parse
from brimful.errors import NoSuchDevice, PlanMismatch, UsageError
from brimful.measure.accelerators import Accelerator
from brimful.measure.gpus import find_gpu
from brimful.measure.sources import digests
from brimful.record import RecordWriter, list_records
from brimful.trials import devices
from brimful.values import (
    Budget,
    Device,
    EffectiveSetting,
    Objective,
    Opened,
    Plan,
    RunStarted,
    Source,
)
from brimful.verbs.run_plan import choose, known_of
from tests.brimful.measure.helper import REPORT
from tests.brimful.verbs.test_run import ATTEMPT

WORDS = ("python", "train.py", "--batch-size", "64")
CPU, CARD = Device("cpu", "cpu"), Device("accelerator", "cuda:0")
ANY = Device("auto", "auto")  # as the script takes it
IMAGINARY = Device("imaginary", "a100-40gb (imaginary)", find_gpu("a100-40gb"))
HOST_BUDGET = Budget(1 << 20, 2 << 20, 2 << 20, "host", "")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here(monkeypatch)


def here(monkeypatch, *names: str, total: int = 80 << 30):
    """This machine has cards of these names."""
    choice = tuple(Accelerator(i, "cuda", name, total, total) for i, name in enumerate(names))
    monkeypatch.setattr(devices.accelerators, "found_by", lambda python: choice)
    monkeypatch.setattr(devices.accelerators, "visible", lambda: choice)


def tuned(
    home,
    words=WORDS,
    device=CPU,
    *,
    verb="tune",
    folder=None,
    plan=True,
    budget=HOST_BUDGET,
    size=512,
    machine=None,
    sources=None,
    entries=(),
):
    """A record of `brimful tune`, as it would have been left."""
    opened = Opened(
        SCHEMA,
        f"20261121-{len(list_records(home)):06d}-{verb}-x",
        verb,
        (),
        parse(words),
        device,
        machine,
        time.time(),
        budget,
        working_folder=os.getcwd() if folder is None else folder,
    )
    with closing(RecordWriter.create(home, opened)) as writer:
        if plan:
            rows = (EffectiveSetting("batch_size", 64, size, "the fastest", Source.MEASURED),)
            writer.append(Plan(Objective.THROUGHPUT, rows, "", True, 3, 0, sources=sources or {}))
        for entry in entries:
            writer.append(entry)
    return opened.record_id


def chosen(home, words=WORDS, plan=None, given=False, device=None):
    return choose(parse(words), plan, given, device, home)


def test_the_newest_plan_of_the_same_command_is_taken_and_named(tmp_path):
    tuned(tmp_path, size=128)
    newest = tuned(tmp_path, size=512)
    tuned(tmp_path, ("python", "other.py", "--batch-size", "64"))
    tuned(tmp_path, plan=False)
    tuned(tmp_path, verb="audit", plan=False)
    choice = chosen(tmp_path)
    assert (choice.source, choice.name) == ("plan", newest)
    assert newest in choice.why
    assert choice.plan is not None and choice.plan.settings[0].effective == 512


@pytest.mark.parametrize(
    "words",
    [
        ("python3", "train.py", "--batch-size", "32"),
        ("/opt/env/bin/python", "train.py", "--batch-size={batch_size}"),
        (
            "python",
            "train.py",
            "--batch-size",
            "{batch_size}",
            "--accumulation",
            "{accumulation}",
            "{resume}",
        ),
        (
            "python",
            "train.py",
            "--batch-size",
            "32",
            "--batch-size",
            "64",
        ),  # the last of them counts
    ],
)
def test_settings_and_what_only_a_run_needs_make_no_other_command(tmp_path, words):
    tuned(
        tmp_path, words=WORDS if "=" not in words[2] else ("python", "train.py", "--batch-size=1")
    )
    assert chosen(tmp_path, words).source == "plan"


def test_settings_given_go_by_themselves_and_none_means_none(tmp_path):
    tuned(tmp_path)
    asked = ({"given": True}, {"plan": "none"}, {"plan": "latest", "given": True})
    assert [chosen(tmp_path, **more).source for more in asked] == ["settings", "command", "plan"]


@pytest.mark.parametrize(
    ("of_plan", "here_is", "asked", "taken"),
    [
        ({"folder": "/elsewhere"}, (), None, ("command", ANY)),  # as it stands
        ({"device": IMAGINARY}, (IMAGINARY.gpu.name,), None, ("plan", CARD)),
        ({}, ("NVIDIA H100 PCIe",), None, ("plan", CPU)),
        ({}, ("NVIDIA H100 PCIe",), "none", ("command", CARD)),
    ],
    ids=["of another folder", "predicted for this card", "for the CPU", "none is wanted"],
)
def test_a_plan_is_followed_in_its_folder_on_the_device_it_is_for(
    tmp_path, monkeypatch, of_plan, here_is, asked, taken
):
    tuned(tmp_path, **of_plan)
    here(monkeypatch, *here_is)
    choice = chosen(tmp_path, plan=asked)
    assert (choice.source, choice.device) == taken
    assert (choice.plan is None) is (choice.source == "command")


def test_a_plan_that_is_named_and_of_another_command_does_not_belong(tmp_path):
    name = tuned(tmp_path, ("python", "other.py", "--batch-size", "64"))
    with pytest.raises(PlanMismatch, match=r"'other.py' there, 'train.py' here") as caught:
        chosen(tmp_path, plan=name)
    assert caught.value.exit_code == 6 and "--set" in caught.value.suggestion


@pytest.mark.parametrize(
    ("of_plan", "here_is", "asked", "why"),
    [
        ({"device": CARD}, (), None, "no accelerator"),
        ({"device": IMAGINARY}, (), None, "no accelerator"),
        ({"device": IMAGINARY}, ("NVIDIA H100 PCIe",), None, "H100"),
        ({"device": CPU}, ("NVIDIA H100 PCIe",), "accelerator", "--device accelerator"),
        ({"device": CARD}, ("NVIDIA H100 PCIe",), "cpu", "--device cpu"),
        ({"budget": Budget(1 << 60, 1 << 60, 1 << 60, "host", "")}, (), None, "host memory"),
    ],
)
def test_a_plan_for_another_device_or_more_memory_is_refused_when_named_and_left_aside_when_found(
    tmp_path, monkeypatch, of_plan, here_is, asked, why
):
    name = tuned(tmp_path, **of_plan)
    here(monkeypatch, *here_is)
    with pytest.raises(PlanMismatch, match=why):
        chosen(tmp_path, plan=name, device=asked)
    left = chosen(tmp_path, device=asked)
    assert left.source == "command" and name in left.why and why in left.why


def test_records_without_a_plan_and_no_record_at_all_are_refused(tmp_path):
    for named, why in (
        (tuned(tmp_path, verb="audit", plan=False), "holds no plan"),
        ("latest", "--plan latest"),
        ("nothing-of-that-name", "nothing-of-that-name"),
    ):
        with pytest.raises(UsageError, match=why):
            chosen(tmp_path, plan=named)


def test_an_accelerator_asked_for_without_a_plan_must_be_here(tmp_path):
    with pytest.raises(NoSuchDevice):
        chosen(tmp_path, device="accelerator")


def test_a_flag_that_was_not_tuned_is_named_where_the_command_is_run_as_it_stands(tmp_path):
    name = tuned(tmp_path)
    choice = chosen(tmp_path, (*WORDS, "--depth", "3"))
    assert choice.source == "command"
    assert f"{name}, is of another command: nothing more there, '--depth' here" in choice.why


def test_one_plan_serves_thirty_seeds_and_output_folders_and_lists_what_differs(tmp_path):
    name = tuned(tmp_path, (*WORDS, "--seed", "0", "--output_dir", "out/0"))
    for seed in range(30):
        words = (
            *WORDS,
            "--output_dir",
            f"out/{seed}",
            "--seed",
            str(seed),
            "--run-name",
            f"r{seed}",
        )
        for named in (None, name, "latest"):
            choice = chosen(tmp_path, words, plan=named)
            assert choice.name == name
            expected = (
                (f"--output_dir out/{seed}, tuned with out/0", f"--seed {seed}, tuned with 0")
                if seed
                else ()
            )
            assert choice.differences == (*expected, f"--run-name r{seed}, tuned without")


@pytest.mark.parametrize(
    ("change", "why"),
    [(lambda model: model.write_text("wide = 8"), "has changed"), (Path.unlink, "is not here")],
)
def test_a_plan_found_with_another_state_of_the_files_is_refused(tmp_path, change, why):
    model = tmp_path / "model.py"
    model.write_text("wide = 4")
    name = tuned(tmp_path, sources=digests(("python", "model.py"), ()))
    assert chosen(tmp_path, plan=name).name == name
    change(model)
    with pytest.raises(PlanMismatch, match=f"model.py {why}"):
        chosen(tmp_path, plan=name)
    left = chosen(tmp_path)
    assert left.source == "command" and "model.py" in left.why


def test_a_file_outside_of_the_working_folder_may_lie_elsewhere_on_another_machine(tmp_path):
    name = tuned(tmp_path, sources={"/elsewhere/lib.py": "0"})
    assert chosen(tmp_path, plan=name).differences == ("/elsewhere/lib.py is not here",)


def test_what_is_known_of_a_command_is_of_this_device(tmp_path, monkeypatch):
    of_a_card = {"device": IMAGINARY, "budget": None, "plan": False}
    predicted = tuned(tmp_path, verb="predict", **of_a_card)
    on_cpu = tuned(tmp_path, verb="run", plan=False)
    tuned(tmp_path, ("python", "other.py"), verb="run", plan=False)
    tuned(tmp_path, verb="audit", plan=False)

    def known(device):
        return [r.opened.record_id for r in known_of(parse(WORDS), tmp_path, device)]

    assert known(CPU) == [on_cpu]
    here(monkeypatch, "NVIDIA A100-SXM4-40GB", total=40 << 30)
    assert known(CARD) == [predicted]
    here(monkeypatch, "NVIDIA H100")
    assert known(CARD) == []


@pytest.mark.parametrize(("device", "is_known"), [("cpu", True), ("xpu:0", False)])
def test_a_run_that_was_left_to_take_a_device_was_on_the_one_that_it_reports(
    tmp_path, device, is_known
):
    started = RunStarted("command", "", 10, (), None)
    attempt = replace(ATTEMPT, reports=(replace(REPORT, device=device),))
    name = tuned(tmp_path, verb="run", device=ANY, plan=False, entries=(started, attempt))
    known = [r.opened.record_id for r in known_of(parse(WORDS), tmp_path, CPU)]
    assert known == [name] * is_known


def test_where_any_device_will_do_no_process_is_asked_that_imports_torch(tmp_path, monkeypatch):
    def asked(python):
        raise AssertionError("a process is started beside the script's")

    monkeypatch.setattr(devices.accelerators, "found_by", asked)
    monkeypatch.setattr(devices.accelerators, "ask_python", asked)
    assert chosen(tmp_path).device == ANY
