"""`evaluate_policy`: mean and spread of the return in one call, with the arguments of Stable-Baselines3."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

from swath.errors import WorkerLate
from swath.evaluation.acting import Predictor
from swath.evaluation.env_parts import changes_rewards, is_monitor, names_of_layers
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import episodes_of
from swath.evaluation.runner import Runner, Watcher
from swath.evaluation.worker import EvalWorker
from swath.options import count
from swath.rollout.hosts.base import ArraySpec
from swath.rollout.hosts.results import info_of
from swath.rollout.hosts.sources import require_unused
from swath.rollout.loop import Step
from swath.rollout.seeding import PrivateStreams, preserve_generators
from swath.rollout.spaces import build_value, joiner
from swath.seeds import derive

Callback = Callable[[dict[str, Any], dict[str, Any]], Any]


class _Options(TypedDict, total=False):
    render: bool
    callback: Callback | None
    reward_threshold: float | None
    warn: bool
    model: Any
    num_envs: int | None
    env_processes: int | None
    max_steps: int | None
    seed: int | None
    keep_float64: bool
    timeout_s: float


class _MeanOptions(_Options, total=False):
    return_episode_rewards: Literal[False]


class _ListOptions(_Options):
    return_episode_rewards: Literal[True]


@overload
def evaluate_policy(
    policy: Any = ...,
    env: Any = ...,
    n_eval_episodes: int = ...,
    deterministic: bool = ...,
    **rest: Unpack[_MeanOptions],
) -> tuple[float, float]: ...


@overload
def evaluate_policy(
    policy: Any = ...,
    env: Any = ...,
    n_eval_episodes: int = ...,
    deterministic: bool = ...,
    **rest: Unpack[_ListOptions],
) -> tuple[list[float], list[int]]: ...


def evaluate_policy(  # noqa: PLR0917  Stable-Baselines3 has the same arguments in the same order
    policy: Any = None,
    env: Any = None,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: Callback | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
    *,
    model: Any = None,
    num_envs: int | None = None,
    env_processes: int | None = None,
    max_steps: int | None = None,
    seed: int | None = 0,
    keep_float64: bool = False,
    timeout_s: float = 3600.0,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """Play whole episodes and return the mean and the standard deviation of their returns.

    Every episode counts, quick or slow: with S envs, env g plays episodes g, g+S, … whatever the others do. Episode i
    is reset with a seed that follows from `seed` and i alone, so two policies play the same episodes. The call blocks,
    in the calling thread. Modules are copied and run in evaluation mode; random states of the process are the same
    after as before; running statistics of normalising wrappers are not updated.

    With a `Monitor` or `RecordEpisodeStatistics` wrapper, return and length come from `info["episode"]`, and a
    termination without it, for example a lost life, ends no episode. A truncation always does: without
    `info["episode"]` return and length are then the sums of the steps.

    Args:
        policy: any policy form, or an object with `predict(obs, state=, episode_start=, deterministic=)`.
        env: a gymnasium id, a callable, an env, a vector env, a Stable-Baselines3 `VecEnv`, or a list of one kind (k
            tasks: episode i runs on entry i mod k). Instances are borrowed: they are not closed.
        n_eval_episodes: how many episodes.
        deterministic: act without exploration, for policies that can: TensorDict modules, policies with a parameter
            `exploration_type`, objects with `predict`; others act as they always do. If false, actions are sampled.
        render: call `env.render()` after each step.
        callback: called with two dicts after each step of each env, before the end of an episode is recorded. The first
            has `i`, `n_envs`, `reward`, `done`, `info`, `actions`, `observations`, `new_observations`, `states`,
            `episode_starts`, `current_rewards`, `current_lengths`, `episode_rewards`, `episode_lengths`,
            `episode_counts`, `episode_count_targets`, `model` and `env`; the second is empty.
        reward_threshold: the mean must exceed it.
        return_episode_rewards: return lists per episode instead.
        warn: warn of wrappers that change rewards where no monitor reports the true ones.
        model: another name for `policy`.
        num_envs: envs stepped together; `None`: 1 for an id or callable, the size of an instance or list.
        env_processes: the number of processes that the envs live in; as in `Collector`.
        max_steps: most steps of an episode; `None`: no further limit.
        seed: root of all seeds; `None`: nothing is seeded.
        keep_float64: as in `Collector`.
        timeout_s: seconds for the whole evaluation.

    Returns:
        Mean and standard deviation (divisor N) of the returns; with `return_episode_rewards` the returns and lengths,
        in episode order.

    Raises:
        AssertionError: the mean is not above `reward_threshold`.
        TypeError: no policy, or two; no env, or one of an unknown kind.
        ValueError: a number is out of range, or a running collector or evaluator steps this env.
        WorkerLate: `timeout_s` passed; checked after each step.
        Exception: the env, the policy or the callback raised it; a note says where.
    """
    if (policy is None) == (model is None):
        got = "neither" if policy is None else "both"
        raise TypeError(f"evaluate_policy() needs a policy, as its first argument or as `model=`; got {got}")
    actor = model if policy is None else policy
    if isinstance(actor, str):
        raise TypeError(f"policy={actor!r} is a text; the order is evaluate_policy(policy, env)")
    options = EvaluatorOptions(
        env,
        actor,
        num_envs=num_envs,
        env_processes=env_processes,
        num_trajectories=count("n_eval_episodes", n_eval_episodes),
        max_steps=max_steps,
        timeout_s=timeout_s,
        keep_float64=keep_float64,
        seed=seed,
        exploration_type="DETERMINISTIC" if deterministic else "RANDOM",
    )
    require_unused(env)
    watchers = [] if callback is None else [partial(_call_back, callback, actor)]
    episodes = episodes_of(play_episodes(options, watchers, render=render, warn=warn).rows)
    returns, lengths = episodes["returns"].copy(), episodes["lengths"].tolist()
    with np.errstate(invalid="ignore"):
        mean, std = float(returns.mean()), float(returns.std())
    if reward_threshold is not None and not mean > reward_threshold:
        raise AssertionError(f"mean return {mean:.2f} is not above reward_threshold={reward_threshold:.2f}")
    return (returns.tolist(), lengths) if return_episode_rewards else (mean, std)


def play_episodes(
    options: EvaluatorOptions, watchers: Sequence[Watcher] = (), *, render: bool = False, warn: bool = False
) -> Runner:
    """Play one round in the calling thread, with the caller's instances, and return its runner."""
    worker = EvalWorker(options, borrows=True)
    device, seed, deadline, env = worker.device, options.seed, monotonic() + options.timeout_s, worker.host.env
    try:
        changers = sorted({*names_of_layers(env, changes_rewards)}) if warn else []
        if changers and not names_of_layers(env, is_monitor):
            text = f"the env's {', '.join(changers)} changes rewards; for the task's rewards wrap the inner env in"
            warnings.warn(f"{text} RecordEpisodeStatistics, or pass warn=False", UserWarning, stacklevel=3)
        runner = worker.runner(options, watchers, monitors=True)
        with preserve_generators(device) if seed is None else PrivateStreams(derive(seed, "global"), device).activate():
            for _ in runner.play(range(options.num_trajectories)):
                for rendered in (env if isinstance(env, list) else [env]) if render else ():
                    rendered.render()
                if monotonic() > deadline:
                    text = f"timeout_s={options.timeout_s} passed: {runner.progress}; give it more time, or max_steps"
                    raise WorkerLate(text, workers=(0,), deadline=options.timeout_s)
    finally:
        worker.close()
    return runner


def _call_back(callback: Callback, model: Any, step: Step, slot: int, runner: Runner) -> None:
    """Call the user's callback with the local variables of Stable-Baselines3 that it may read."""
    spec, episodes = runner.host.spec, episodes_of(runner.rows)
    done = np.zeros(spec.num_envs, dtype=np.bool_)
    done[step.ends.envs] = True
    observations: list[Any] = [step.observation[0], step.next_observation[0]]
    if isinstance(spec, ArraySpec):
        space = spec.observation_space
        observations = [build_value(space, iter(leaves)) for leaves in (step.observation, step.next_observation)]
        actions = joiner(spec.action_space)(step.outputs)
    else:
        actions = step.outputs[0].select(*spec.action_keys)
    variables = {
        "i": slot,
        "n_envs": spec.num_envs,
        "reward": step.reward[slot],
        "done": bool(done[slot]),
        "info": info_of(step.info, slot),
        "actions": actions,
        "observations": observations[0],
        "new_observations": observations[1],
        "states": runner.policy.state if isinstance(runner.policy, Predictor) else None,
        "episode_starts": done,
        "current_rewards": runner.sums.returns.copy(),
        "current_lengths": runner.sums.lengths.copy(),
        "episode_rewards": episodes["returns"].tolist(),
        "episode_lengths": episodes["lengths"].tolist(),
        "episode_counts": np.array([sum(episode in runner.rows for episode in share) for share in runner.shares]),
        "episode_count_targets": np.array([*map(len, runner.shares)]),
        "model": model,
        "env": runner.host.env,
    }
    callback(variables, {})
