"""Calls that repeat cost a look-up and show what they would have shown; others run."""

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.brimful_inside.imaginary.conftest import card, entered, played

MANY = 12
RUN = 3  # calls alike, after which others cost a look-up; the card's first one takes a workspace


class Model(nn.Module):
    """Counts its forward passes, does `also(self, data)` in each, and keeps what a script may look
    at."""

    def __init__(self, also=lambda self, data: None):
        super().__init__()
        self.first, self.second = nn.Linear(32, 256), nn.Linear(256, 8)
        self.also, self.ran, self.inside = also, 0, None

    def forward(self, data, scale=None):
        torch.nonzero(data[:1])  # whose upper bound is counted
        self.ran += 1
        hidden = F.gelu(self.first(data))
        self.also(self, hidden)
        return {"scores": self.second(hidden), "name": "scores"}


def on_card(work, repeats=True):
    """(`work`'s answer, the peak of its trace, the kernels that ran)."""
    file = io.StringIO()
    with entered(card(), None, file) as gpu:
        if not repeats:
            gpu.annotations.calls.repeats = None
        answer = work()
        kernels = gpu.clock.since(0)
    return answer, played(file).peak, (kernels, dict(gpu.approximations))


def evaluated(model, batches, grad=False):
    shapes = []
    with torch.set_grad_enabled(grad):
        for batch in batches:
            out = model(batch)
            shapes.append((tuple(out["scores"].shape), out["scores"].requires_grad, out["name"]))
            del out
    return shapes


def batches(count=MANY, size=16):
    return (torch.zeros(size, 32, device="cuda") for _ in range(count))


def accumulated(model, losses=lambda out: out["scores"].sum(), count=MANY):
    for batch in batches(count):
        losses(model(batch)).backward()


def assert_the_same_by_look_ups(work, ran, answer=None):
    """`work` answers (forward passes that ran, anything): the latter, peak and kernels are what
    they are where every call runs."""
    (passes, looked_up), *costs = on_card(work)
    (all_passes, shown), *all_costs = on_card(work, repeats=False)
    assert ran(passes, all_passes)
    assert looked_up == shown == answer and costs == all_costs


def test_the_fourth_of_an_evaluations_identical_calls_costs_a_lookup_and_shows_the_same():
    def work():
        model = Model().cuda().eval()
        shapes = evaluated(model, batches())
        return model.ran, shapes

    assert_the_same_by_look_ups(
        work, lambda *ran: ran == (1 + RUN, MANY), [((16, 8), False, "scores")] * MANY
    )


def test_the_fourth_identical_micro_batch_costs_a_lookup_and_its_step_has_the_same_kernels():
    def work():
        model = Model().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            accumulated(
                model, lambda out: F.mse_loss(out["scores"], torch.zeros_like(out["scores"])) / MANY
            )
            optimizer.step()
            optimizer.zero_grad()
        return model.ran, None

    # the first of a step makes the gradients
    assert_the_same_by_look_ups(work, lambda *ran: ran == (2 * (1 + RUN), 2 * MANY))


class WithLoss(Model):
    """Returns a loss and scores, as models of Transformers do."""

    def forward(self, data):
        scores = super().forward(data)["scores"]
        return {"loss": scores.mean(), "scores": scores, "most": scores.detach().max()}


@pytest.mark.parametrize(
    ("changed", "grad"), [("loss", True), ("scores", True), ("most", True), ("loss", False)]
)
def test_what_a_look_up_returns_can_be_changed_in_place(changed, grad):
    def work():
        model = WithLoss().cuda()
        with torch.set_grad_enabled(grad):
            for batch in batches():
                out = model(batch)
                out[changed] *= 1
                if grad:
                    ((out["loss"] + out["scores"].sum()) / MANY).backward()
        return model.ran, None

    assert_the_same_by_look_ups(work, lambda ran, whole: ran < whole == MANY)


def test_a_step_and_a_phase_begin_the_count_anew(gpu):
    model = Model().cuda().eval()
    evaluated(model, batches(1))
    evaluated(model, batches())
    gpu.cards.step(1)
    evaluated(model, batches())
    gpu.cards.phase("eval")
    evaluated(model, batches())
    assert model.ran == 1 + 3 * RUN


def _reads(self, hidden):
    torch.tensor([3], device="cuda").item()


def _keeps(self, hidden):
    self.inside = [*(self.inside or ()), hidden]


def of_an_evaluation(also=lambda self, data: None):
    """How many forward passes of an evaluation of a `Model` run."""

    def work():
        model = Model(also).cuda().eval()
        evaluated(model, batches())
        return model.ran

    return on_card(work)[0]


def _reads_its_own(self, hidden):
    """What the call itself made of shapes is the same in the next."""
    assert torch.arange(len(hidden), device="cuda").expand(4, -1).cumsum(0)[
        -1
    ].max().item() == 4 * (len(hidden) - 1)


def _reads_older(self, hidden):
    """A counter: the next call may see another number."""
    self.inside = torch.zeros((), device="cuda") if self.inside is None else self.inside
    self.inside += 1
    self.inside.item()


@pytest.mark.parametrize(
    ("also", "ran"),
    [(_reads_its_own, 1 + RUN), (_reads, MANY), (_reads_older, MANY), (_keeps, MANY)],
)
def test_a_call_that_reads_a_known_value_or_keeps_what_it_makes_runs_each_time(also, ran):
    """What it made of shapes alone is no such value."""
    assert of_an_evaluation(also) == ran


def test_other_shapes_other_values_of_the_host_and_kept_outputs_run():
    def work():
        model, kept = Model().cuda().eval(), []
        evaluated(model, (torch.zeros(size, 32, device="cuda") for size in range(1, MANY + 1)))
        with torch.no_grad():
            batch = torch.zeros(16, 32, device="cuda")
            for _ in range(MANY):
                kept.append(model(batch))
        return model.ran

    assert on_card(work)[0] == 2 * MANY


@pytest.mark.parametrize("scale", [int, float, lambda number: torch.tensor(number)])
def test_ten_calls_that_differ_in_numbers_alone_show_that_those_decide_nothing(scale):
    def work():
        model, batch = Model().cuda().eval(), torch.zeros(16, 32, device="cuda")
        with torch.no_grad():
            for number in range(50):
                model(batch, scale(number))
        return model.ran

    assert on_card(work)[0] == 1 + 10


def test_numbers_that_decide_shapes_are_seen_to():
    def work():
        model, batch = nn.Linear(32, 8).cuda(), torch.zeros(64, 32, device="cuda")
        longer = Longer(model).cuda()
        with torch.no_grad():
            return [longer(batch, number).shape[0] for number in range(1, MANY)]

    assert on_card(work)[0] == list(range(1, MANY))


class Longer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, batch, number):
        return self.inner(batch[:number])


def _last(self, hidden):
    self.inside = hidden.square().mean()


def _twice(model):
    for batch in batches():
        (model(batch)["scores"] + model(batch)["scores"]).sum().backward()


def _graph_kept(model):
    for batch in batches():
        model(batch)["scores"].sum().backward(retain_graph=True)


def _watched(model):
    seen = []
    model.first.weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(1))
    accumulated(model)
    assert len(seen) == MANY


def _inner_loss(model):
    model.also = _last
    accumulated(model, lambda out: out["scores"].sum() + model.inside)


def _gradients_end(model):
    for batch in batches():
        model(batch)["scores"].sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        model.zero_grad()


@pytest.mark.parametrize("training", [_twice, _graph_kept, _watched, _inner_loss, _gradients_end])
def test_a_backward_pass_that_does_more_than_add_to_gradients_runs_each_time(training):
    def work():
        model = Model().cuda()
        training(model)
        return model.ran

    assert on_card(work)[0] == (2 * MANY if training is _twice else MANY)


def test_nothing_is_left_out_where_ranks_may_wait(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert of_an_evaluation() == MANY


def test_no_module_is_kept_alive():
    def work():
        model = Model().cuda()
        model(next(batches()))["scores"].sum().backward()
        model(next(batches()))
        del model
        return torch.cuda.memory_allocated()

    assert on_card(work)[0] <= on_card(work, repeats=False)[0]
