import torch

WEIGHTS = (512 * 1024 + 1024 * 8) * 4  # bytes


def make() -> torch.nn.Module:
    inner = torch.nn.Sequential(
        torch.nn.Linear(512, 1024, bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(1024, 8, bias=False),
    )
    return torch.nn.DataParallel(inner.cuda())


def test_replicas_take_the_weights_once_on_every_other_card_while_their_outputs_live(
    three, allocated
):
    model = make()
    assert allocated() == [WEIGHTS, 0, 0]
    replicas = torch.nn.parallel.replicate(model.module, [0, 1, 2])
    assert allocated() == [WEIGHTS, WEIGHTS, WEIGHTS]
    assert [next(replica.parameters(), replica[0].weight).device.index for replica in replicas] == [
        0,
        1,
        2,
    ]
    del replicas
    assert allocated() == [WEIGHTS, 0, 0]


def test_each_card_works_on_its_share_and_the_first_gathers(three):
    out = make()(torch.randn(30, 512))
    assert out.shape == (30, 8) and out.device.index == 0
    with torch.no_grad():
        parts = torch.nn.parallel.scatter(torch.randn(31, 4), [0, 1, 2])
    assert [(part.shape[0], part.device.index) for part in parts] == [(11, 0), (11, 1), (9, 2)]


def test_gradients_come_together_on_the_first_card(three, allocated):
    model = make()
    model(torch.randn(12, 512)).sum().backward()
    assert {parameter.grad.device.index for parameter in model.parameters()} == {0}
    first = torch.cuda.memory_stats(0)["requested_bytes.all.current"]
    # of cuBLAS, all that is left on the others
    workspaces = torch.cuda.memory_stats(1)["requested_bytes.all.current"]
    assert first == 2 * WEIGHTS + workspaces


def exchanged(gpu, work) -> list[int]:
    """Bytes over the link of each card in a step."""
    gpu.cards.step(1)
    for clock in gpu.clocks:
        clock.last_step()
    work()
    gpu.cards.step(2)
    return [
        sum(kernel.bytes for kernel in clock.last_step() if kernel.kind == "peer")
        for clock in gpu.clocks
    ]


def test_weights_go_out_and_gradients_come_back_over_every_cards_link_in_each_step(three):
    model, data = make(), torch.randn(12, 512, device="cuda")
    sent = exchanged(three, lambda: model(data).sum().backward())
    rows = 4 * 512 * 4  # a card's share of the batch, scattered from the first one
    outputs = 4 * 8 * 4  # of each other card, gathered, and their gradients
    assert sent[1] == sent[2] == 2 * WEIGHTS + rows + 2 * outputs
    assert sent[0] == 2 * WEIGHTS + 2 * rows + 4 * outputs


def test_a_tensor_that_a_script_moves_itself_goes_over_both_links_and_one_that_stays_over_none(
    three,
):
    tensor = torch.ones(1000, device="cuda:0")

    def work():
        tensor.to("cuda:2")
        tensor.to(torch.float16)

    assert exchanged(three, work) == [4000, 0, 4000]
