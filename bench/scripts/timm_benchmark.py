"""A training benchmark of an image model, as timm's own benchmark.py runs it with --amp
--channels-last --bench train.

Random images that are on the card already, SGD with momentum, one update of the weights for each;
torch.cuda events tell the time. `--eval` runs the forward pass alone.
"""

import argparse

import timm.layers
import timm.optim
import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--img-size", type=int)
    parser.add_argument("--precision", choices=("amp", "tf32", "fp32"), default="amp")
    parser.add_argument("--channels-first", action="store_true")
    parser.add_argument("--fused-attention", action="store_true")
    parser.add_argument(
        "--foreach",
        action="store_true",
        help="the optimizer goes over lists of tensors (PyTorch 2.0 on)",
    )
    parser.add_argument("--eval", action="store_true")
    args = parser.parse_args()

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = (
        args.precision != "fp32"
    )
    timm.layers.set_fused_attn(args.fused_attention)
    layout = torch.contiguous_format if args.channels_first else torch.channels_last
    model = timm.create_model(args.model, pretrained=False).to("cuda", memory_format=layout)
    channels, height, width = model.default_cfg["input_size"]
    height, width = (args.img_size, args.img_size) if args.img_size else (height, width)
    images = torch.randn(args.batch_size, channels, height, width, device="cuda").contiguous(
        memory_format=layout
    )
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=1e-4, foreach=args.foreach)
    loss_fn = nn.CrossEntropyLoss().to("cuda")
    model.train(not args.eval)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    for step in range(args.steps):
        begin.record()
        with (
            torch.autocast("cuda", torch.float16, enabled=args.precision == "amp"),
            torch.set_grad_enabled(not args.eval),
        ):
            output = model(images)
            if not args.eval:
                target = torch.empty(output.shape[0], device="cuda", dtype=torch.long).random_(
                    model.num_classes
                )
                loss_fn(output, target).backward()
        if not args.eval:
            optimizer.step()
            optimizer.zero_grad()
        end.record()
        torch.cuda.synchronize()
        print(f"step {step}: {args.batch_size / (begin.elapsed_time(end) / 1e3):.1f} images/s")


if __name__ == "__main__":
    main()
