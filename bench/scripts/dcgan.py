"""DCGAN, after PyTorch's tutorial: a generator and a discriminator, each with an optimizer of its
own.
"""

import argparse

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

NZ, NGF, NDF, NC = 100, 64, 64, 3


def weights_init(module):
    name = module.__class__.__name__
    if "Conv" in name:
        nn.init.normal_(module.weight.data, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(module.weight.data, 1.0, 0.02)
        nn.init.constant_(module.bias.data, 0)


def generator():
    layers, channels = [], NZ
    for factor in (8, 4, 2, 1):
        stride, padding = (1, 0) if channels == NZ else (2, 1)
        layers += [
            nn.ConvTranspose2d(channels, NGF * factor, 4, stride, padding, bias=False),
            nn.BatchNorm2d(NGF * factor),
            nn.ReLU(True),
        ]
        channels = NGF * factor
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels, NC, 4, 2, 1, bias=False), nn.Tanh())


def discriminator():
    layers, channels = (
        [nn.Conv2d(NC, NDF, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)],
        NDF,
    )
    for factor in (2, 4, 8):
        layers += [
            nn.Conv2d(channels, NDF * factor, 4, 2, 1, bias=False),
            nn.BatchNorm2d(NDF * factor),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        channels = NDF * factor
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 4, 1, 0, bias=False), nn.Sigmoid())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=2048)
    args = parser.parse_args()
    torch.manual_seed(999)
    device = torch.device("cuda:0")

    loader = DataLoader(
        TensorDataset(torch.rand(args.samples, NC, 64, 64) * 2 - 1),
        args.batch_size,
        shuffle=True,
        num_workers=2,
    )
    net_g, net_d = generator().to(device), discriminator().to(device)
    net_g.apply(weights_init)
    net_d.apply(weights_init)
    criterion = nn.BCELoss()
    fixed_noise = torch.randn(64, NZ, 1, 1, device=device)
    optimizer_d = optim.Adam(net_d.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizer_g = optim.Adam(net_g.parameters(), lr=0.0002, betas=(0.5, 0.999))
    img_list, g_losses, d_losses = [], [], []

    for epoch in range(args.epochs):
        for i, (real,) in enumerate(loader):
            # (1) Update the discriminator: maximize log(D(x)) + log(1 - D(G(z)))
            net_d.zero_grad()
            real = real.to(device)
            label = torch.full((real.size(0),), 1.0, dtype=torch.float, device=device)
            output = net_d(real).view(-1)
            err_real = criterion(output, label)
            err_real.backward()
            d_x = output.mean().item()
            noise = torch.randn(real.size(0), NZ, 1, 1, device=device)
            fake = net_g(noise)
            label.fill_(0.0)
            output = net_d(fake.detach()).view(-1)
            err_fake = criterion(output, label)
            err_fake.backward()
            optimizer_d.step()

            # (2) Update the generator: maximize log(D(G(z)))
            net_g.zero_grad()
            label.fill_(1.0)
            output = net_d(fake).view(-1)
            err_g = criterion(output, label)
            err_g.backward()
            optimizer_g.step()
            g_losses.append(err_g.item())
            d_losses.append((err_real + err_fake).item())
            if i % 50 == 0:
                losses = f"Loss_D: {d_losses[-1]:.4f} Loss_G: {g_losses[-1]:.4f}"
                print(f"[{epoch}/{args.epochs}][{i}/{len(loader)}] {losses} D(x): {d_x:.4f}")
        with torch.no_grad():
            img_list.append(net_g(fixed_noise).detach().cpu())
    torch.save({"generator": net_g.state_dict(), "discriminator": net_d.state_dict()}, "dcgan.pt")


if __name__ == "__main__":
    main()
