"""A Wasserstein GAN with gradient penalty: five steps of the critic to one of the generator."""

import argparse
from itertools import pairwise

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def critic_layers(widths=(3, 128, 256, 512)):
    layers = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 4, 2, 1), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * 64, 1))


def generator_layers(widths=(512, 256, 128)):
    layers = [nn.Linear(128, widths[0] * 64), nn.Unflatten(1, (widths[0], 8, 8))]
    for before, after in pairwise(widths):
        layers += [nn.ConvTranspose2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(widths[-1], 3, 4, 2, 1), nn.Tanh())


def penalty(critic, real, fake):
    share = torch.rand(len(real), 1, 1, 1, device=real.device)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((slope.flatten(1).norm(2, 1) - 1) ** 2).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    critic, generator = critic_layers().cuda(), generator_layers().cuda()
    settings = {"lr": 1e-4, "betas": (0.0, 0.9)}
    critic_optimizer = torch.optim.Adam(critic.parameters(), **settings)
    generator_optimizer = torch.optim.Adam(generator.parameters(), **settings)
    images = TensorDataset(torch.randn(10_000, 3, 64, 64))
    loader = DataLoader(images, args.batch_size, shuffle=True, drop_last=True)
    for _ in range(20):
        for step, (real,) in enumerate(loader):
            real = real.cuda()
            fake = generator(torch.randn(len(real), 128, device="cuda")).detach()
            loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)
            critic_optimizer.zero_grad()
            loss.backward()
            critic_optimizer.step()
            if step % 5 == 4:
                fake = generator(torch.randn(len(real), 128, device="cuda"))
                generator_optimizer.zero_grad()
                (-critic(fake).mean()).backward()
                generator_optimizer.step()


if __name__ == "__main__":
    main()
