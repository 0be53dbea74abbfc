"""DeepSpeed: its engine over a network of torchvision, with ZeRO, as in its CIFAR tutorial."""

import argparse

import deepspeed
import torch
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()

deepspeed.init_distributed()
ds_config = {
    "train_batch_size": args.batch_size,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8}},
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "wall_clock_breakdown": False,
    "zero_optimization": {"stage": args.stage, "overlap_comm": True},
}
images = torchvision.datasets.FakeData(2000, (3, 64, 64), 10, torchvision.transforms.ToTensor())
net = torchvision.models.resnet50(num_classes=10)
engine, optimizer, loader, _ = deepspeed.initialize(
    args=args,
    model=net,
    model_parameters=[p for p in net.parameters() if p.requires_grad],
    training_data=images,
    config=ds_config,
)
criterion = torch.nn.CrossEntropyLoss()
for epoch in range(args.epochs):
    for i, (inputs, labels) in enumerate(loader):
        inputs = inputs.to(engine.local_rank, torch.bfloat16)
        loss = criterion(engine(inputs), labels.to(engine.local_rank))
        engine.backward(loss)
        engine.step()
        if engine.local_rank == 0 and i % 100 == 0:
            print(f"epoch {epoch}, step {i}: loss {loss.item():.3f}")
