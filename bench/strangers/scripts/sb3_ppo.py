"""Stable-Baselines3: PPO on several environments at once, as its documentation shows it."""

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()

vec_env = make_vec_env("CartPole-v1", n_envs=4)
model = PPO("MlpPolicy", vec_env, batch_size=args.batch_size, device="cuda", verbose=1)
model.learn(total_timesteps=25_000)
model.save("ppo_cartpole")
