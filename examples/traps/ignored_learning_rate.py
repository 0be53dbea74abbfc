"""The trap: Adafactor takes relative steps by default, and never reads the learning rate that was
asked for.

The optimizer is the usual one (fairseq, torch_optimizer), cut down to what matters:
`relative_step=True` is its default.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Adafactor(torch.optim.Optimizer):
    def __init__(
        self,
        params,
        lr=None,
        decay=-0.8,
        clip_threshold=1.0,
        scale_parameter=True,
        relative_step=True,
    ):
        defaults = {"lr": lr, "decay": decay, "clip_threshold": clip_threshold}
        super().__init__(
            params, {**defaults, "scale_parameter": scale_parameter, "relative_step": relative_step}
        )

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.update(parameter, group)

    def update(self, parameter, group):
        state = self.state[parameter]
        state["step"] = state.get("step", 0) + 1
        squares = parameter.grad.square() + 1e-30
        beta2 = 1 - state["step"] ** group["decay"]
        if parameter.dim() == 2:
            rows = state.setdefault("rows", torch.zeros_like(squares[:, 0])).lerp_(
                squares.mean(1), 1 - beta2
            )
            columns = state.setdefault("columns", torch.zeros_like(squares[0])).lerp_(
                squares.mean(0), 1 - beta2
            )
            second = torch.outer(rows / rows.mean(), columns)
        else:
            second = state.setdefault("second", torch.zeros_like(squares)).lerp_(squares, 1 - beta2)
        update = parameter.grad / second.sqrt()
        update /= (rms(update) / group["clip_threshold"]).clamp(min=1.0)
        parameter -= self.rate(parameter, state, group) * update

    def rate(self, parameter, state, group):
        rate = min(1e-2, state["step"] ** -0.5) if group["relative_step"] else group["lr"]
        return rate * rms(parameter).clamp(min=1e-3) if group["scale_parameter"] else rate


def rms(tensor):
    return tensor.square().mean().sqrt()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(2048, 64)
    loader = DataLoader(
        TensorDataset(inputs, inputs.mean(1, keepdim=True)),
        batch_size=args.batch_size,
        shuffle=True,
    )
    model = nn.Sequential(
        nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    ).to(device)
    optimizer = Adafactor(model.parameters(), lr=args.lr)
    for features, targets in loader:
        loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
