"""Unconditional image generation with Diffusers and Accelerate, after their training example:
UNet2DModel, DDPM, EMAModel.
"""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_batch_size", type=int, default=16)
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--num_epochs", type=int, default=1)
    parser.add_argument("--mixed_precision", default="fp16", choices=["no", "fp16", "bf16"])
    parser.add_argument("--use_ema", action="store_true")
    args = parser.parse_args()

    accelerator = Accelerator(mixed_precision=args.mixed_precision)
    model = UNet2DModel(
        sample_size=args.resolution,
        layers_per_block=2,
        block_out_channels=(128, 128, 256, 256),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )
    ema = None
    if args.use_ema:
        ema = EMAModel(
            model.parameters(),
            decay=0.9999,
            use_ema_warmup=True,
            model_cls=UNet2DModel,
            model_config=model.config,
        )
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6
    )
    dataset = TensorDataset(torch.rand(1024, 3, args.resolution, args.resolution) * 2 - 1)
    loader = DataLoader(dataset, batch_size=args.train_batch_size, shuffle=True, num_workers=2)
    schedule = get_cosine_schedule_with_warmup(optimizer, 500, len(loader) * args.num_epochs)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if ema is not None:
        ema.to(accelerator.device)

    for epoch in range(args.num_epochs):
        model.train()
        for (clean,) in loader:
            noise = torch.randn(clean.shape, device=clean.device)
            steps = torch.randint(
                0,
                noise_scheduler.config.num_train_timesteps,
                (clean.shape[0],),
                device=clean.device,
            ).long()
            noisy = noise_scheduler.add_noise(clean, noise, steps)
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(noisy, steps).sample.float(), noise.float())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients and ema is not None:
                ema.step(model.parameters())
        unet = accelerator.unwrap_model(model)
        if ema is not None:
            ema.store(unet.parameters())
            ema.copy_to(unet.parameters())
        pipeline = DDPMPipeline(unet=unet, scheduler=noise_scheduler)
        pipeline.set_progress_bar_config(disable=True)
        images = pipeline(batch_size=4, num_inference_steps=5, output_type="np").images
        if ema is not None:
            ema.restore(unet.parameters())
        print(f"epoch {epoch}: loss {loss.detach().item():.4f}, images {images.shape}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
