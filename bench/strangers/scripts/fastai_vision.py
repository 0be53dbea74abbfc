"""fastai: vision_learner on pictures in folders, as the quick start of its documentation."""

import argparse

from fastai.vision.all import ImageDataLoaders, Resize, error_rate, resnet18, vision_learner

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--bs", type=int, default=16)
args = parser.parse_args()

loaders = ImageDataLoaders.from_folder(
    args.data, train="train", valid="val", item_tfms=Resize(96), bs=args.bs, num_workers=0
)
learner = vision_learner(loaders, resnet18, metrics=error_rate, pretrained=False)
learner.fit_one_cycle(2, 1e-3)
