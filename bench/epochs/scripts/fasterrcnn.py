"""Faster R-CNN of torchvision on images with sides of 96 to 224 pixels."""

from functools import partial

import torch
from images import collate, on_card, scene
from shared import flags, loader_of, train
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn


def loss_of(model, images, targets):
    return sum(model(*on_card(images, targets)).values())


args = flags(1200, batch_size=4)
make = partial(scene, smallest=96, largest=224, most=8, classes=5)
model = fasterrcnn_mobilenet_v3_large_fpn(
    weights=None, weights_backbone=None, num_classes=5, min_size=160, max_size=320
).cuda()
parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.SGD(parameters, lr=0.005, momentum=0.9, weight_decay=0.0005)
model.train()
train(model, optimizer, loader_of(args, make, [], collate), loss_of)
