"""`RayEvalWorker`: one env and one policy in an actor of a Ray cluster, one rollout per submit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import cloudpickle
import torch

from swath.evaluation.eval_actor import EvalActor
from swath.evaluation.options import NUM_GPUS, require_ray, resources_of
from swath.evaluation.rollout_handle import ActorOptions, Address, RolloutHandle
from swath.keys import keys_of
from swath.options import count
from swath.rollout.policies.calling import ExplorationType
from swath.weights.manifest import snapshot_of

NAMESPACE = "swath"


class RayEvalWorker:
    """Plays rollouts with the weights of the moment in an actor of a Ray cluster, beside the training.

        worker = RayEvalWorker(init_fn, make_env, make_policy)
        worker.submit(policy, max_steps=500)
        …
        if (result := worker.poll()) is not None:
            log(result["reward"], result["frames"])

    A rollout goes from a reset to the end of one episode of every sub-env. For many episodes, use `Evaluator` with
    `backend="ray"`. The actor is begun at once, and nobody waits for it. With a name it outlives this driver, and
    others reach it by `from_name`. If it is lost, the handle that built it begins another and repeats the rollout, at
    the next `poll` or `submit`; a handle of `from_name` raises `WorkerLost`.

    Args:
        init_fn: runs first in the actor's process; `None` for nothing.
        env_maker: makes an env, of any kind; each step of one with `render_mode="rgb_array"` is rendered.
        policy_maker: makes the policy; gets the env if it wants one.
        num_gpus: that Ray is asked for; 0 on machines without.
        reward_keys: entry of the env that is its reward, or a list of them: their mean.
        name: under which the actor is registered, and outlives its driver until `shutdown`.
        done_keys: entry that ends an episode, or a list of them: when all are set.
        seed: root of all seeds; sub-env i is reset with that of episode i. `None` for fresh ones.
        timeout_s: seconds for one rollout.
        start_timeout_s: seconds for `init_fn`, env and policy.
        placement_timeout_s: seconds for Ray to place the actor.
        retries: how often a rollout is repeated after its actor was lost.
        max_video_bytes: frames held at most; beyond it filming stops.
        **remote_kwargs: options of `ray.remote()`; `namespace` is that of the name, `"swath"` by default.

    Raises:
        RuntimeError: Ray is not installed.
        ValueError: the name is taken, a number out of range, or an option that is not the caller's to give.
        TypeError: something of the wrong kind, or that cannot be pickled.
    """

    def __init__(
        self,
        init_fn: Callable[[], Any] | None,
        env_maker: Callable[[], Any],
        policy_maker: Callable[..., Any],
        *,
        num_gpus: float = NUM_GPUS,
        reward_keys: Any = ("next", "reward"),
        name: str | None = None,
        done_keys: Any = ("next", "done"),
        seed: int | None = 0,
        timeout_s: float = 3600.0,
        start_timeout_s: float = 300.0,
        placement_timeout_s: float = 60.0,
        retries: int = 1,
        max_video_bytes: int = 2**30,
        **remote_kwargs: Any,
    ) -> None:
        require_ray()
        keys_of("reward_keys", reward_keys)
        keys_of("done_keys", done_keys)
        for given, function in (("env_maker", env_maker), ("policy_maker", policy_maker)):
            if not callable(function):
                raise TypeError(f"{given} is of type {type(function).__name__}; it must be callable")
        at = _address(name, remote_kwargs.pop("namespace", NAMESPACE))
        resources = resources_of(num_gpus, remote_kwargs, "remote_kwargs")
        options = ActorOptions(init_fn, resources, retries, timeout_s, start_timeout_s, placement_timeout_s)
        makers = cloudpickle.dumps((env_maker, policy_maker))
        build = partial(EvalActor, makers, done_keys, seed, count("max_video_bytes", max_video_bytes))
        self._handle = RolloutHandle(build, at, options)
        self._reward_keys = reward_keys

    @classmethod
    def from_name(cls, name: str, *, reward_keys: Any = ("next", "reward"), namespace: str | None = None) -> Self:
        """Reach a worker that was made with a name, from any process of the cluster; returns at once.

        Args:
            name: with which it was made.
            reward_keys: of the rollouts that this handle submits.
            namespace: of the name; `None` for `"swath"`.

        Raises:
            RuntimeError: Ray is not installed.
            ValueError: there is no actor of that name.
            TypeError: the actor of that name is something else.
        """
        require_ray()
        keys_of("reward_keys", reward_keys)
        worker = cls.__new__(cls)
        handle = RolloutHandle(None, _address(name, NAMESPACE if namespace is None else namespace))
        vars(worker).update(_handle=handle, _reward_keys=reward_keys)
        return worker

    def submit(
        self, weights: Any, max_steps: int | None, *, deterministic: bool = True, break_when_any_done: bool = True
    ) -> None:
        """Ask for a rollout, and return at once. What was asked for before, also by other handles, is given up.

        Args:
            weights: of the policy: a module, a TensorDict, a mapping or a snapshot, copied now; `None`: as they are.
            max_steps: most steps of each sub-env; `None`: until they are done, or `timeout_s` has passed.
            deterministic: whether the policy acts without chance.
            break_when_any_done: stop with the first sub-env that is done; what the others have earned by then counts
                as their returns, so that for unbiased means of many it is to be false.

        Raises:
            Closed: after `shutdown`.
            TypeError: not weights.
            ValueError: `max_steps` is no positive integer.
        """
        steps = None if max_steps is None else count("max_steps", max_steps)
        exploration = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
        self._handle.submit(
            None if weights is None else snapshot_of(weights),
            max_steps=steps,
            exploration=exploration,
            until_any_done=break_when_any_done,
            reward_keys=self._reward_keys,
        )

    def poll(self, timeout: float | None = 0) -> dict[str, Any] | None:
        """The result of the last rollout that was submitted here, once; `None` if it is not there.

        Args:
            timeout: seconds to wait for it; `None`: until it is there or late.

        Returns:
            `reward`, the mean return of the sub-envs, and `frames`, uint8 `[T, H, W, 3]` of sub-env 0 or `None`; beside
            them `reward_std`, `reward_min`, `reward_max`, `reward_median`, `reward_iqm`, `reward_ci_low`,
            `reward_ci_high`, `num_episodes`, `num_frames`, `episode_length`, `duration_s`, `fps`, `policy_version`,
            `frames_truncated`, and by sub-env `episode_rewards`, `episode_lengths`, `truncated`.

        Raises:
            Closed: it was shut down while this waited.
            Superseded: another handle submitted.
            WorkerLost, WorkerLate, PlacementFailed: what became of the actor.
            Exception: what code of the user raised, as its own type.
        """
        outcome = self._handle.poll(timeout)
        if outcome is None or isinstance(outcome, dict):
            return outcome
        try:
            return {**outcome.head, "frames": torch.from_numpy(outcome.open().copy())}
        finally:
            outcome.close()

    def shutdown(self, timeout: float = 5.0) -> None:
        """Close the env in the actor and end the actor, for all handles. Twice is fine.

        Another handle that built the actor begins a new one if it submits again.

        Args:
            timeout: seconds for the env to be closed.
        """
        self._handle.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        """A status line; asks nobody."""
        return f"<RayEvalWorker {self._handle}>"


def _address(name: str | None, namespace: str) -> Address | None:
    for given, value in (("name", name), ("namespace", namespace)):
        if value is not None and not (isinstance(value, str) and value):
            raise ValueError(f"{given}={value!r} must be a non-empty string")
    return None if name is None else Address(name, namespace)
