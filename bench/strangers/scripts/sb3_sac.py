"""Stable-Baselines3: SAC, whose actor, critic and entropy coefficient have an optimizer each."""

import argparse

import gymnasium as gym
from stable_baselines3 import SAC

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=256)
args = parser.parse_args()

env = gym.make("Pendulum-v1", render_mode="rgb_array")
model = SAC("MlpPolicy", env, batch_size=args.batch_size, device="cuda", verbose=1)
model.learn(total_timesteps=10_000, log_interval=4)
model.save("sac_pendulum")
