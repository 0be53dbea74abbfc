"""Faster R-CNN of torchvision on images with sides of 96 to 224 pixels."""

import argparse

import torch
from images import Scenes, collate, loader_of
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--samples", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = loader_of(Scenes(args.samples, 96, 224, most=8, classes=5), args.batch_size, collate)
    model = fasterrcnn_mobilenet_v3_large_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=160, max_size=320
    ).cuda()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.005, momentum=0.9, weight_decay=0.0005)
    model.train()
    for images, targets in loader:
        images = [image.cuda() for image in images]
        targets = [{name: value.cuda() for name, value in target.items()} for target in targets]
        losses = model(images, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
