"""Train a small convolutional network with Accelerate: a plain loop, accumulation, mixed precision,
gathered metrics.
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ConvNet(nn.Module):
    def __init__(self, classes=10, width=64):
        super().__init__()
        layers, inside = [], 3
        for outside in (width, 2 * width, 4 * width):
            layers += [
                nn.Conv2d(inside, outside, 3, padding=1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(inplace=True),
            ]
            layers += [
                nn.Conv2d(outside, outside, 3, padding=1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(inplace=True),
            ]
            layers += [nn.MaxPool2d(2)]
            inside = outside
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(inside, classes)
        )

    def forward(self, images):
        return self.head(self.features(images))


def images(count, seed):
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=source)
    return TensorDataset(
        torch.randn(count, 3, 32, 32, generator=source) + labels.view(-1, 1, 1, 1) / 5, labels
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--mixed-precision", choices=["no", "fp16", "bf16"], default="no")
    args = parser.parse_args()

    accelerator = Accelerator(
        mixed_precision=args.mixed_precision,
        gradient_accumulation_steps=args.accumulate,
        project_config=ProjectConfiguration(
            project_dir="out", automatic_checkpoint_naming=True, total_limit=2
        ),
    )
    set_seed(0)
    train_loader = DataLoader(
        images(4096, 1), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    eval_loader = DataLoader(images(1024, 2), batch_size=args.batch_size)
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, total_steps=args.epochs * len(train_loader)
    )
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for batch, labels in train_loader:
            with accelerator.accumulate(model):
                loss = criterion(model(batch), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total += loss.detach().float()

        model.eval()
        right = seen = 0
        for batch, labels in eval_loader:
            with torch.no_grad():
                predicted = model(batch).argmax(dim=-1)
            predicted, labels = accelerator.gather_for_metrics((predicted, labels))
            right += (predicted == labels).sum().item()
            seen += labels.shape[0]
        accelerator.print(
            f"epoch {epoch}: loss {total.item() / len(train_loader):.4f}, accuracy "
            f"{right / seen:.2%}"
        )
        accelerator.save_state()
    accelerator.wait_for_everyone()
    accelerator.save(accelerator.unwrap_model(model).state_dict(), "model.pt")


if __name__ == "__main__":
    main()
