"""Diffusers: a U-Net trained to remove noise, EMA weights, sampling by 1,000 steps at the end of an
epoch.
"""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--train_batch_size", type=int, default=16)
parser.add_argument("--eval_batch_size", type=int, default=16)
parser.add_argument("--ddpm_num_inference_steps", type=int, default=1000)
args = parser.parse_args()

accelerator = Accelerator(mixed_precision="fp16")
model = UNet2DModel(
    sample_size=32,
    in_channels=3,
    out_channels=3,
    layers_per_block=1,
    block_out_channels=(64, 128),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
ema = EMAModel(model.parameters(), decay=0.999)
scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = DataLoader(
    TensorDataset(torch.randn(512, 3, 32, 32)), batch_size=args.train_batch_size, shuffle=True
)
schedule = get_cosine_schedule_with_warmup(optimizer, 10, 3 * len(loader))
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
ema.to(accelerator.device)
for epoch in range(3):
    model.train()
    for (clean,) in loader:
        noise = torch.randn_like(clean)
        steps = torch.randint(0, 1000, (clean.shape[0],), device=clean.device)
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(scheduler.add_noise(clean, noise, steps), steps).sample, noise)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        ema.step(model.parameters())
    unet = accelerator.unwrap_model(model)
    ema.store(unet.parameters())
    ema.copy_to(unet.parameters())
    pipeline = DDPMPipeline(unet=unet, scheduler=scheduler)
    images = pipeline(
        batch_size=args.eval_batch_size,
        num_inference_steps=args.ddpm_num_inference_steps,
        output_type="np",
    ).images
    ema.restore(unet.parameters())
    print(epoch, images.shape)
