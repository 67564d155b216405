"""What the advice in docs/flying.md is worth: the same task with one thing changed, beside the lean way.

    python benchmarks/flying.py [--quick]

Frames per second of `Collector` in this process on CartPole-v1, MLP 4-64-64-2; contenders take turns (see rounds.py).
Nothing here has a target.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium
import torch
from gymnasium.wrappers import RecordEpisodeStatistics
from torch import Tensor, nn
from torch.distributions import Categorical

from collector_local import collecting
from policies import lean_actor, mlp, quiet_threads, tensordict_actor
from rounds import CPU, Run, Target, interleave, reached, show
from swath import Collector

LEAN = "lean sampler, 8 envs, 1 thread"
STEPS = 128


class AsMostWriteIt(nn.Module):
    """A distribution object per step, with its checks."""

    in_keys = ("observation",)
    out_keys = ("action", "action_log_prob")

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Actions `[B]` and log-probabilities `[B]`."""
        choice = Categorical(logits=self.net(observation))
        action = choice.sample()
        return action, choice.log_prob(action)


class Lean(AsMostWriteIt):
    """The same draws in distribution, without an object: the page has it."""

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Actions `[B]` and log-probabilities `[B]`."""
        log_probs = self.net(observation).log_softmax(-1)
        noise = torch.empty_like(log_probs).exponential_().log()
        action = (log_probs - noise).argmax(-1, keepdim=True)
        return action.squeeze(-1), log_probs.gather(-1, action).squeeze(-1)


def wrapped() -> gymnasium.Env[Any, Any]:
    """With a wrapper of the user's around each env."""
    return RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))


def in_two_threads(run: Run) -> Run:
    """Torch has another thread for as long as this contender's turn lasts."""

    def with_two(seconds: float) -> float:
        torch.set_num_threads(2)
        rate = run(seconds)
        torch.set_num_threads(1)
        return rate

    return with_two


def contenders(stack: ExitStack) -> dict[str, Run]:
    """Each with collectors of its own."""

    def draws(env: str | Callable[[], Any], policy: nn.Module | None, envs: int | None = 8) -> Run:
        frames = STEPS * (envs or 64)
        return collecting(stack.enter_context(Collector(env, policy, envs_per_worker=envs, frames_per_batch=frames)))

    cartpole = "CartPole-v1"
    arrays = partial(gymnasium.make_vec, cartpole, num_envs=64, vectorization_mode="vector_entry_point")
    return {
        LEAN: draws(cartpole, Lean()),
        "our actor": draws(cartpole, lean_actor()),
        "a distribution object per step": draws(cartpole, AsMostWriteIt()),
        "a tensordict module": draws(cartpole, tensordict_actor(mlp())),
        "no policy: random actions": draws(cartpole, None),
        "1 env": draws(cartpole, Lean(), 1),
        "64 envs": draws(cartpole, Lean(), 64),
        "64 envs, written as one array program": draws(arrays, Lean(), None),
        "RecordEpisodeStatistics around each env": draws(wrapped, Lean()),
        "2 torch threads": in_two_threads(draws(cartpole, Lean())),
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few short rounds: a look, not a measurement")
    rounds = 9 if parser.parse_args().quick else 41
    quiet_threads()
    print(f"{rounds} rounds, {'CPU' if CPU else 'wall'} seconds")
    with ExitStack() as stack:
        runs = contenders(stack)
        rates = interleave(runs, rounds, 0.1)
        show(f"CartPole-v1, {STEPS} steps a batch", rates, "frames/s")
        reached(rates, [Target(name, LEAN, None) for name in runs if name != LEAN])


if __name__ == "__main__":
    main()
