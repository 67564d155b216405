"""Env and policy in use: in a collector of this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from tensordict import TensorDictBase

from swath.collectors import Collector
from swath.doctor.finding import Finding, Level, told
from swath.doctor.subject import Subject, is_batched, is_walkable, size_of
from swath.doctor.watchdog import heard
from swath.keys import ACTION
from swath.rollout.hosts.torchrl import is_torchrl_env

STEPS = 64
PART = 2
"""Steps of a batch that is only looked at: what takes its time is not taken for what hangs, and ends after a few."""

MOVES = {
    "shape": "answer with one action per env: sample from the logits, or take their argmax, along the last dimension",
    "dtype": "cast it to the action space's dtype, as .to(torch.float32) and .long() do",
    "reads": "name its parameters, or in_keys, after entries of the observation",
}
OTHERWISE = "call it by hand with a batch of observations, and mend what it raises"


def together(env: Any, subject: Subject) -> int | None:
    """How many copies of the env are stepped together; `None` for one that is batched, or exists already."""
    return None if is_batched(env) or not is_walkable(env) or subject.is_instance else subject.envs


def collector_of(subject: Subject, envs: int | None, frames: int, *, acts: bool) -> Collector:
    """A collector in this process, without an end, whose batches have so many frames."""
    return Collector(
        subject.env,
        subject.policy if acts else None,
        policy_factory=subject.policy_factory if acts else None,
        envs_per_worker=envs,
        frames_per_batch=frames,
        seed=subject.seed,
    )


def check_use(subject: Subject) -> Iterator[Finding]:
    """Batches of random actions."""
    try:
        _batches(subject, acts=False)
    except Exception as error:  # noqa: BLE001  that is what was found
        yield Finding(
            Level.ERROR,
            "collecting",
            told(error),
            "a batch of random actions",
            "mend what the message names, in the env",
        )


def check_policy(subject: Subject) -> Iterator[Finding]:
    """Batches of the policy's actions."""
    space = _action_space(subject)
    try:
        batches = _batches(subject, acts=True)
    except Exception as error:  # noqa: BLE001  that is what was found
        yield refused(error, space)
        return
    if isinstance(space, spaces.Box):
        yield from beyond(np.concatenate([batch[ACTION].cpu().numpy() for batch in batches]), space)


def refused(error: Exception, space: Any) -> Finding:
    """A policy that gives no actions for this env."""
    kinds = {ValueError: "shape", TypeError: "dtype", KeyError: "reads"}
    said = " ".join(str(error).split())
    kind = kinds.get(type(error)) if said.strip("'\"").startswith("the policy") else None
    return Finding(
        Level.ERROR,
        "answers of the policy",
        told(error),
        f"an action of {space} for each env",
        MOVES.get(kind or "", OTHERWISE),
    )


def beyond(actions: Any, space: spaces.Box) -> Iterator[Finding]:
    """Actions that the env will clip, or choke on."""
    wrong = ~((actions >= space.low) & (actions <= space.high))
    part = float(np.mean(wrong))
    if np.isnan(actions).any():
        yield Finding(
            Level.ERROR,
            "answers of the policy",
            "NaN",
            "finite actions",
            "look for infinite observations and diverged weights; Collector(check_finite=True) says in which step",
        )
    elif part:
        yield Finding(
            Level.WARNING,
            "answers of the policy",
            f"{part:.0%} of the numbers are outside {space}",
            "actions inside their space",
            "squash them with tanh, clip them, or wrap the env in gymnasium.wrappers.ClipAction",
        )


def _batches(subject: Subject, *, acts: bool) -> list[TensorDictBase]:
    """What a collector makes of a few steps, at least one batch."""
    env = subject.make()
    envs = together(env, subject)
    frames = PART * (envs or size_of(env))
    subject.done_with(env)
    collector, until = collector_of(subject, envs, frames, acts=acts), time.monotonic() + subject.effort.seconds
    batches: list[TensorDictBase] = []
    try:
        for batch in heard(collector):
            batches.append(batch)
            if len(batches) == STEPS // PART or time.monotonic() > until:
                break
    finally:
        collector.shutdown(close_env=not subject.is_instance)
    return batches


def _action_space(subject: Subject) -> Any:
    env = subject.make()
    try:
        return env.action_spec if is_torchrl_env(env) else getattr(env, "single_action_space", env.action_space)
    finally:
        subject.done_with(env)
