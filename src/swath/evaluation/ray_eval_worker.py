"""`RayEvalWorker`: one env and one policy in an actor of a Ray cluster, one rollout per submit.

submit ─▶ EvaluationService ─▶ EvalWorkers, a group of one ─▶ EvalWorker in the actor ─▶ EvalResult ─▶ poll
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Never, Self

import torch

from swath.errors import WorkerLost
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import EvalResult
from swath.evaluation.service import EvaluationService, Face
from swath.evaluation.workers import PUBLIC, EvalWorkers
from swath.extras import need
from swath.options import count
from swath.workers.ray.backend import registered

NAMESPACE = "swath"
ANSWER_S = 0.1  # how long an actor may take to say what it has
LOOK_EVERY_S = 0.05
SETTLE_S = 1.0  # how long a rollout that was just submitted elsewhere may take to reach the actor
_options = partial(EvaluatorOptions, backend="ray", dump_video=False, busy_policy="latest", per_episode=True)


class RayEvalWorker(Face):
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
        keep_float64: as in `Collector`.
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
        num_gpus: float = 1,
        reward_keys: Any = ("next", "reward"),
        name: str | None = None,
        done_keys: Any = ("next", "done"),
        seed: int | None = 0,
        timeout_s: float = 3600.0,
        start_timeout_s: float = 300.0,
        placement_timeout_s: float = 60.0,
        retries: int = 1,
        max_video_bytes: int = 2**30,
        keep_float64: bool = False,
        **remote_kwargs: Any,
    ) -> None:
        namespace = remote_kwargs.pop("namespace", NAMESPACE)
        options = _options(
            env_maker,
            policy_factory=policy_maker,
            init_fn=init_fn,
            num_gpus=num_gpus,
            ray_kwargs=remote_kwargs,
            reward_keys=reward_keys,
            done_keys=done_keys,
            seed=seed,
            timeout_s=timeout_s,
            start_timeout_s=start_timeout_s,
            placement_timeout_s=placement_timeout_s,
            retries=retries,
            max_video_bytes=max_video_bytes,
            keep_float64=keep_float64,
        )
        self._open(options, name, namespace)

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
        worker = cls.__new__(cls)
        options = _options(_made_there, policy_factory=_made_there, num_gpus=0, reward_keys=reward_keys, retries=0)
        cls._open(worker, options, name, namespace or NAMESPACE, joins=True)
        return worker

    def _open(self, options: EvaluatorOptions, name: str | None, namespace: str, *, joins: bool = False) -> None:
        at = self._at = None if name is None else (name, namespace)
        self._options, self._name, self._joins = options, "" if name is None else f"{name!r} ", joins
        workers = EvalWorkers(options, at, joins=joins)
        workers.begin(*([] if at is None else [partial(_require, *at, joins=joins)]))
        super().__init__(EvaluationService(options, workers, per_slot=True), ends=False)

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
        changes = {
            "max_steps": None if max_steps is None else count("max_steps", max_steps),
            "exploration_type": "DETERMINISTIC" if deterministic else "RANDOM",
            "reward_keys": self._options.reward_keys,
        }
        self._service.trigger(weights, until_any_done=break_when_any_done, changes=changes)

    def poll(self, timeout: float | None = 0) -> dict[str, Any] | None:
        """Return the result of the last rollout that was submitted here, once; `None` if it is not there.

        If the actor has a name and nothing is submitted here, it is the newest result of the actor that no handle has
        read. A rollout is played to its end as long as some handle polls, also if its own handle is gone.

        Args:
            timeout: seconds to wait for it; `None`: until it is there or late; for a moment, if nothing is submitted.

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
        try:
            result = self._service.wait(timeout)
            if result is not None:
                self._mark_read()
            elif self._at is not None:
                result = self._look(timeout)
        except WorkerLost as lost:
            if self._joins:
                lost.add_note("the handle that built it begins another, then from_name() finds that one")
            raise
        if result is None:
            return None
        numbers = {name.removeprefix("eval/"): value for name, value in result.items()}
        numbers["num_frames"], numbers["frames"] = numbers.pop("frames"), numbers.pop("video", None)
        del numbers["step"]
        truncated = torch.from_numpy(result.truncated)
        return {**numbers, "frames_truncated": result.video_truncated, "truncated": truncated}

    def _look(self, timeout: float | None) -> EvalResult | None:
        """Return the newest result that no handle has read, as soon as there is one."""
        service, until = self._service, monotonic() + (SETTLE_S if timeout is None else timeout)
        while not service.closed and not service.pending:
            service.trigger(None, look=True)
            result = service.wait(None if timeout is None else max(ANSWER_S, until - monotonic()))
            if result is not None or monotonic() >= until:
                return result
            service.pause(LOOK_EVERY_S)
        return None

    def _mark_read(self) -> None:
        """Tell an actor with a name that its result was read, so that no other handle gets it."""
        if self._at is not None:
            with suppress(ValueError):  # it is gone, and its results with it
                marked = registered(*self._at).mark_read.remote(self._service.asker)
                need("ray", extra="ray", why="for RayEvalWorker").wait([marked], timeout=ANSWER_S)

    def __repr__(self) -> str:
        """A status line; asks nobody."""
        state = "closed" if self._service.closed else "a rollout is asked for" if self._service.pending else "idle"
        return f"<RayEvalWorker {self._name}{state}>"


def _made_there() -> Never:
    """Env and policy of an actor that another handle has built are known there only."""
    raise AssertionError("the actor has its own env and policy")


def _require(name: str, namespace: str, *, joins: bool) -> None:
    """Check that the name is free, or is that of a worker to be joined."""
    said = f"named {name!r} in namespace {namespace!r}"
    try:
        actor = registered(name, namespace)
    except ValueError:
        if joins:
            raise ValueError(f"there is no actor {said}: it was shut down, is lost, or has another name") from None
        return
    if not joins:
        raise ValueError(f"there is an actor {said} already; reach it with RayEvalWorker.from_name()")
    if not all(hasattr(actor, method) for method in PUBLIC):
        raise TypeError(f"the actor {said} is no RayEvalWorker: {actor}")
