"""Train PPO on 2,048 pendulums that are stepped at once, as tensors, on the CPU or on a GPU.

python examples/pendulums.py [--device cuda] [--envs 2048] [--frames 1500000]

    pendulums ──observations, on the device──▶ policy ──actions, on the device──▶ pendulums
                                                 └──batch, on the device──▶ PPO

Nothing is copied to the host in a step. A pendulum that stands upright costs nothing: returns rise from about -1,200 to
about -200.
"""

import argparse
from dataclasses import replace

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from swath import Collector
from swath.learn import PPO, default_config, make_policy

STEPS, EVERY, LIMIT = 32, 5, 200


class Pendulums(gymnasium.Env):
    """Gymnasium's `Pendulum-v1` many times; each is cut after 200 steps, and begins again within that step.

    Args:
        num_envs: number of pendulums.
        device: where they are.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32))
    single_action_space = Box(-2, 2, (1,))

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        self.num_envs, self.device = num_envs, device
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.random = torch.Generator(device)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        """Begin with all pendulums, at different steps of their episodes, so that they do not all end at once."""
        if seed is not None:
            self.random.manual_seed(seed)
        self.angle, self.speed = self.draw()
        self.steps = torch.randint(LIMIT, (self.num_envs,), generator=self.random, device=self.device)
        return self.look(), {}

    def step(self, action):
        """Step all pendulums."""
        torque = action.squeeze(-1).clamp(-2, 2)
        angle = (self.angle + torch.pi) % (2 * torch.pi) - torch.pi
        cost = angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2
        self.speed = (self.speed + (15 * self.angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self.angle, self.steps = self.angle + self.speed * 0.05, self.steps + 1
        last, cut = self.look(), self.steps >= LIMIT
        first_angle, first_speed = self.draw()
        self.angle, self.speed = torch.where(cut, first_angle, self.angle), torch.where(cut, first_speed, self.speed)
        self.steps = self.steps.masked_fill(cut, 0)
        infos = {"final_obs": last, "upright": (angle.abs() < 0.3).float()}
        return self.look(), -cost, torch.zeros_like(cut), cut, infos

    def draw(self):
        """Return random angles and speeds."""
        angle, speed = torch.rand(2, self.num_envs, generator=self.random, device=self.device) * 2 - 1
        return angle * torch.pi, speed

    def look(self):
        """Return the observation `[B, 3]`."""
        return torch.stack([self.angle.cos(), self.angle.sin(), self.speed], -1)


def main() -> None:
    """Train, and print the return of an episode at the present mean reward, and how many pendulums stand upright."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--envs", type=int, default=2048)
    parser.add_argument("--frames", type=int, default=1_500_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small networks lose time with more
    torch.manual_seed(0)
    spaces = Pendulums.single_observation_space, Pendulums.single_action_space
    policy = make_policy(*spaces).to(arguments.device)
    size = arguments.envs * STEPS // 16
    config = replace(default_config(*spaces), gamma=0.95, epochs=5, minibatch_size=size, total_frames=arguments.frames)
    learner = PPO(policy, config)
    with Collector(
        lambda: Pendulums(arguments.envs, arguments.device),
        policy,
        frames_per_batch=arguments.envs * STEPS,
        total_frames=arguments.frames,
        seed=0,
        info_keys=["upright"],
    ) as collector:
        for number, batch in enumerate(collector):
            learner.update(batch)
            if number % EVERY == 0:
                score, upright = LIMIT * batch["next", "reward"].mean(), batch["next", "upright"].mean()
                print(f"{learner.frames:>9,} frames   return {score:7.1f}   {upright:4.0%} upright", flush=True)


if __name__ == "__main__":
    main()
