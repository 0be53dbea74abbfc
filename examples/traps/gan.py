"""Two networks and two optimizers: the critic steps with every batch, the generator with every
second one.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NOISE, CRITIC_STEPS = 16, 2


def network(inside, outside):
    return nn.Sequential(nn.Linear(inside, 128), nn.LeakyReLU(0.2), nn.Linear(128, outside))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-4)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    points = torch.randn(2048, 2) * 0.1 + torch.tensor([1.0, -1.0])
    loader = DataLoader(TensorDataset(points), batch_size=args.batch_size, shuffle=True)
    generator, critic = network(NOISE, 2).to(device), network(2, 1).to(device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=args.lr, betas=(0.5, 0.999))
    judge = nn.functional.binary_cross_entropy_with_logits
    for number, (real,) in enumerate(loader, 1):
        real = real.to(device)
        ones, zeros = (
            torch.ones(len(real), 1, device=device),
            torch.zeros(len(real), 1, device=device),
        )
        fake = generator(torch.randn(len(real), NOISE, device=device))
        critic_loss = judge(critic(real), ones) + judge(critic(fake.detach()), zeros)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        if number % CRITIC_STEPS == 0:
            generator_loss = judge(critic(fake), ones)
            generator_optimizer.zero_grad()
            generator_loss.backward()
            generator_optimizer.step()
    print(f"critic {critic_loss.item():.4f}, generator {generator_loss.item():.4f}")


if __name__ == "__main__":
    main()
