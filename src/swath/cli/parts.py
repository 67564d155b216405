"""What a run works with: collector, policy, learner and judge, built from its options."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from swath.cli.failure import UsageError, serving
from swath.cli.folder import find_checkpoint
from swath.cli.naming import env_named, object_named
from swath.cli.state import give_weights, open_run
from swath.cli.words import INLINE, NONE, RAY, THREAD
from swath.collectors import Collector
from swath.evaluators import Evaluator
from swath.extras import need
from swath.learn import PPO, NetworkPolicy, default_config, make_policy
from swath.rollout.hosts.base import ArraySpec, first_of
from swath.rollout.hosts.sources import Source, build
from swath.rollout.hosts.vector import is_vector_env
from swath.seeds import derive

if TYPE_CHECKING:
    from gymnasium import Space

    from swath.cli.config import RunConfig
    from swath.learn import PPOConfig


class Spaces(NamedTuple):
    """What one env shows, and what can be done in it."""

    observation: Space[Any]
    action: Space[Any]


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
        spaces = spaces_of(config.env)
        policy = build_policy(config, spaces)
        learner = PPO(policy, learner_config(config, spaces))
        judge = None if config.eval_backend == NONE else judge_of(config, policy)
        if judge is not None:
            stack.callback(judge.shutdown)
        collector = Collector(
            env_named(config.env),
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


def collector_keywords(workers: int, backend: str, device: str) -> dict[str, Any]:
    """Where the workers of a `Collector` are; each adds its share to every batch.

    Policies act on this command's device; on Ray on the CPU, which every node has.
    """
    if backend == INLINE:
        return {"policy_device": device}
    acting = "cpu" if backend == RAY else device
    return {"policy_device": acting, "backend": backend, "num_collectors": workers, "sync": True}


def judge_of(config: RunConfig, policy: NetworkPolicy) -> Evaluator:
    """An evaluator that plays the run's evaluation episodes, the same ones every time."""
    place: dict[str, Any] = {"policy": policy}
    if config.eval_backend != THREAD:
        device = "cpu" if config.eval_backend == RAY else config.device
        place = {"backend": config.eval_backend, "collector_kwargs": {"num_threads": config.threads}}
        place["policy_factory"] = partial(_policy_for, device)
    if config.eval_backend == RAY:
        need("ray", extra="ray", why="for --eval-backend ray")
        place["num_gpus"] = 0
    return Evaluator(
        env_named(config.env),
        num_trajectories=config.eval_episodes,
        num_envs=min(config.envs, config.eval_episodes),
        busy_policy="queue",
        seed=config.seed,
        **place,
    )


def whole_batch(config: RunConfig) -> int:
    """Frames of a batch: as asked, but no more than the run has, and as many from every env."""
    step = config.envs * config.workers
    return ceil(min(config.batch, config.frames) / step) * step


def spaces_of(env: str) -> Spaces:
    """The spaces of an env, which is built and closed again.

    Args:
        env: as it is named.

    Raises:
        UsageError: there is no such env, its spaces cannot be served, or it is batched already.
    """
    with serving(env), closing(build(Source(env_named(env)))) as host:
        one = first_of(host.env)
        if not isinstance(host.spec, ArraySpec):
            raise UsageError(f"{env} is no gymnasium env, which only collectors and evaluators serve; name one that is")
        if is_vector_env(one):
            what = "name what makes one of them, of which --envs are stepped together"
            raise UsageError(f"{env} is batched already ({one.num_envs} envs); {what}")
        return Spaces(one.observation_space, one.action_space)


def build_policy(config: RunConfig, spaces: Spaces) -> NetworkPolicy:
    """A fresh policy for the env's spaces, on the run's device; its weights follow from the seed."""
    device = device_named(config.device)
    with torch.random.fork_rng(devices=[]), serving(config.env):
        torch.manual_seed(derive(_learner_root(config), "policy"))
        return make_policy(*spaces).to(device)


def actor_named(policy: str | Path | None, env: str) -> Any:
    """Who acts in an env, both as they are named: a checkpoint of `swath train`, or what `module:name` is.

    Returns:
        A policy as `Collector` takes it; `None` for random actions.

    Raises:
        UsageError: there is no such thing, or it is for other spaces.
    """
    if policy is None:
        return None
    if ":" in str(policy) and not Path(policy).exists():
        return object_named(str(policy))
    saved = open_run(find_checkpoint(Path(policy)))
    with torch.random.fork_rng(devices=[]), serving(env):
        actor = make_policy(*spaces_of(env))
    give_weights(actor, saved, env)
    return actor


def learner_config(config: RunConfig, spaces: Spaces) -> PPOConfig:
    """What suits the env, changed by what the user set."""
    suited = default_config(*spaces)
    return replace(suited, total_frames=config.frames, seed=derive(_learner_root(config), "global"), **config.ppo)


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


def _learner_root(config: RunConfig) -> int:
    """A root of its own: the collector derives the seeds of envs and actions from the run's."""
    return derive(config.seed, "next")


def _policy_for(device: str, env: Any) -> NetworkPolicy:
    """A policy for this env, whose weights are sent."""
    return make_policy(env.observation_space, env.action_space).to(device)
