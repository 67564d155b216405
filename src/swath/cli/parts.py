"""What a run works with: collector, policy, learner and judge, built from its options."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Self

import torch

from swath.cli.failure import UsageError, told_if_unserved
from swath.cli.judge import judge_of
from swath.cli.naming import maker_named
from swath.cli.places import collector_keywords
from swath.cli.spaces import spaces_of_copies
from swath.collectors import Collector
from swath.learn import PPO, NetworkPolicy, default_config, make_policy
from swath.seeds import derive

if TYPE_CHECKING:
    from swath.cli.config import RunConfig
    from swath.cli.spaces import Spaces
    from swath.evaluators import Evaluator
    from swath.learn import PPOConfig


@dataclass(frozen=True)
class Parts:
    """The parts of one run; its `with` block closes them."""

    collector: Collector
    policy: NetworkPolicy
    learner: PPO
    judge: Evaluator | None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            if self.judge is not None:
                stack.callback(self.judge.shutdown)
            stack.callback(self.collector.shutdown)


def build_parts(config: RunConfig) -> Parts:
    """Build everything; what was built is closed again if something fails."""
    torch.set_num_threads(config.threads)
    with ExitStack() as stack:
        spaces = spaces_of_copies(config.env)
        policy = build_policy(config, spaces)
        learner = PPO(policy, learner_config(config, spaces))
        judge = judge_of(config, policy)
        if judge is not None:
            stack.callback(judge.shutdown)
        collector = Collector(
            maker_named(config.env),
            policy,
            frames_per_batch=whole_batch(config),
            total_frames=config.frames,
            envs_per_worker=config.envs,
            seed=config.seed,
            storing_device=config.device,
            **collector_keywords(config.workers, config.backend, config.device),
        )
        stack.pop_all()
    return Parts(collector, policy, learner, judge)


def whole_batch(config: RunConfig) -> int:
    """Frames of a batch: as asked, but no more than the run has, and as many from every env."""
    step = config.envs * config.workers
    return ceil(min(config.batch, config.frames) / step) * step


def last_frame(config: RunConfig, done: int) -> int:
    """Where a run ends of which so many frames are done: with the batch that reaches the frames asked for."""
    batch = whole_batch(config)
    return done + ceil((config.frames - done) / batch) * batch


def build_policy(config: RunConfig, spaces: Spaces) -> NetworkPolicy:
    """A fresh policy for the env's spaces, on the run's device; its weights follow from the seed."""
    device = device_named(config.device)
    with torch.random.fork_rng(devices=[]), told_if_unserved(config.env):
        torch.manual_seed(derive(_learner_root(config), "policy"))
        return make_policy(*spaces).to(device)


def learner_config(config: RunConfig, spaces: Spaces) -> PPOConfig:
    """What suits the env, changed by what the user set."""
    suited = default_config(*spaces)
    return replace(suited, total_frames=config.frames, seed=derive(_learner_root(config), "global"), **config.ppo)


def _learner_root(config: RunConfig) -> int:
    """A root of its own: the collector derives the seeds of envs and actions from the run's."""
    return derive(config.seed, "next")


def device_named(name: str) -> torch.device:
    """The device of this name.

    Raises:
        UsageError: it cannot be used here.
    """
    try:
        probe = torch.zeros(1, device=name)
        probe.cpu()  # the device "meta" never gives data back
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from None
    return probe.device
