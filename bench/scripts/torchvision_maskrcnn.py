"""Fine-tuning Mask R-CNN, after torchvision's object detection tutorial: new heads, images of many
sizes, COCO-like targets.
"""

import argparse
import math
import sys

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor


class People(Dataset):
    """Rectangles on noise, in the form of the Penn-Fudan data set."""

    def __init__(self, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.sizes = torch.randint(300, 500, (length, 2), generator=generator).tolist()
        self.counts = torch.randint(1, 8, (length,), generator=generator).tolist()

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        height, width = self.sizes[index]
        generator = torch.Generator().manual_seed(index)
        boxes, masks = [], torch.zeros(self.counts[index], height, width, dtype=torch.uint8)
        for mask in masks:
            x, y = (
                int(torch.randint(0, n // 2, (1,), generator=generator)) for n in (width, height)
            )
            w, h = (
                int(torch.randint(20, n // 2, (1,), generator=generator)) for n in (width, height)
            )
            mask[y : y + h, x : x + w] = 1
            boxes.append([x, y, x + w, y + h])
        boxes = torch.tensor(boxes, dtype=torch.float32)
        target = {
            "boxes": boxes,
            "masks": masks,
            "labels": torch.ones(len(boxes), dtype=torch.int64),
            "image_id": index,
            "area": (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 2] - boxes[:, 0]),
            "iscrowd": torch.zeros(len(boxes), dtype=torch.int64),
        }
        return torch.rand(3, height, width, generator=generator), target


def get_model_instance_segmentation(num_classes):
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    in_features = model.roi_heads.box_predictor.cls_score.in_features
    model.roi_heads.box_predictor = FastRCNNPredictor(in_features, num_classes)
    in_features_mask = model.roi_heads.mask_predictor.conv5_mask.in_channels
    model.roi_heads.mask_predictor = MaskRCNNPredictor(in_features_mask, 256, num_classes)
    return model


def collate_fn(batch):
    return tuple(zip(*batch))


def train_one_epoch(model, optimizer, loader, device, epoch):
    model.train()
    warmup = None
    if epoch == 0:
        warmup = torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=0.001, total_iters=min(1000, len(loader) - 1)
        )
    for images, targets in loader:
        images = [image.to(device) for image in images]
        targets = [
            {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()}
            for t in targets
        ]
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        loss_value = losses.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        if warmup is not None:
            warmup.step()
    print(f"epoch {epoch}: loss {loss_value:.4f}")


@torch.inference_mode()
def evaluate(model, loader, device):
    model.eval()
    found = 0
    for images, _ in loader:
        outputs = model([image.to(device) for image in images])
        outputs = [{k: v.to("cpu") for k, v in t.items()} for t in outputs]
        found += sum(int((output["scores"] > 0.5).sum()) for output in outputs)
    print(f"{found} instances found")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

    loader = DataLoader(
        People(120, 0), args.batch_size, shuffle=True, num_workers=2, collate_fn=collate_fn
    )
    test_loader = DataLoader(People(50, 1), 1, num_workers=2, collate_fn=collate_fn)
    model = get_model_instance_segmentation(num_classes=2)
    model.to(device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.005, momentum=0.9, weight_decay=0.0005)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    for epoch in range(args.epochs):
        train_one_epoch(model, optimizer, loader, device, epoch)
        lr_scheduler.step()
        evaluate(model, test_loader, device)


if __name__ == "__main__":
    main()
