"""Who judges a run's policy: an evaluator beside the training, with the same episodes every time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from swath.cli.naming import maker_named
from swath.cli.places import NONE, RAY, THREAD
from swath.evaluators import Evaluator
from swath.extras import need
from swath.learn import make_policy

if TYPE_CHECKING:
    from swath.cli.config import RunConfig
    from swath.learn import NetworkPolicy


def judge_of(config: RunConfig, policy: NetworkPolicy) -> Evaluator | None:
    """An evaluator that plays the run's evaluation episodes beside the training; `None` where there is to be none.

    Its episodes, and the envs that are stepped together, are those of `swath eval`: so are its numbers.
    """
    if config.eval_backend == NONE:
        return None
    return Evaluator(
        maker_named(config.env),
        num_trajectories=config.eval_episodes,
        num_envs=eval_envs(config),
        busy_policy="queue",
        seed=config.seed,
        **_place(config, policy),
    )


def eval_envs(config: RunConfig) -> int:
    """How many envs an evaluation steps together."""
    return min(config.envs, config.eval_episodes)


def _place(config: RunConfig, policy: NetworkPolicy) -> dict[str, Any]:
    if config.eval_backend == THREAD:
        return {"policy": policy}
    more: dict[str, Any] = {}
    if config.eval_backend == RAY:
        need("ray", extra="ray", why="for --eval-backend ray")
        more["num_gpus"] = 0
    device = "cpu" if config.eval_backend == RAY else config.device
    more["collector_kwargs"] = {"num_threads": config.threads}
    return {"policy_factory": partial(_policy_for, device), "backend": config.eval_backend, **more}


def _policy_for(device: str, env: Any) -> NetworkPolicy:
    """A policy for this env, whose weights are sent."""
    return make_policy(env.observation_space, env.action_space).to(device)
