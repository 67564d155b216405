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
from swath.evaluation.service import EvaluationService, ServiceOwner
from swath.evaluation.workers import PUBLIC, EvalWorkers
from swath.extras import import_extra
from swath.options import count
from swath.workers.ray.backend import registered

NAMESPACE = "swath"
ANSWER_S = 0.1  # time for an actor to answer
FETCH_EVERY_S = 0.05
SETTLE_S = 1.0  # time for the rollout of another driver to reach the actor
_options = partial(EvaluatorOptions, backend="ray", dump_video=False, busy_policy="latest", per_episode=True)


class RayEvalWorker(ServiceOwner):
    """Plays rollouts with the newest weights in an actor of a Ray cluster, while the training goes on.

        worker = RayEvalWorker(init_fn, make_env, make_policy)
        worker.submit(policy, max_steps=500)
        …
        if (result := worker.poll()) is not None:
            log(result["reward"], result["frames"])

    A rollout goes from a reset to the end of one episode of every sub-env. For many episodes, use `Evaluator` with
    `backend="ray"`. The constructor begins the actor without waiting for it. With a name the actor outlives this
    driver, and other drivers reach it by `from_name`. If it is lost, the handle that built it begins another and
    repeats the rollout, at the next `poll` or `submit`; a handle of `from_name` raises `WorkerLost`.

    Args:
        init_fn: runs first in the actor's process; `None` for nothing.
        env_maker: makes an env, of any kind; each step of one with `render_mode="rgb_array"` is rendered.
        policy_maker: makes the policy; gets the env if it wants one.
        num_gpus: GPUs of the actor; 0 on machines without.
        reward_keys: the env's entry with the reward, or a list of entries: their mean.
        name: registers the actor, which then outlives its driver until `shutdown`.
        done_keys: the entry that ends an episode, or a list of entries: when all are set.
        seed: root of all seeds; sub-env i is reset with the seed of episode i. `None` for fresh seeds.
        timeout_s: seconds for one rollout.
        start_timeout_s: seconds for `init_fn`, env and policy.
        placement_timeout_s: seconds for Ray to place the actor.
        retries: how often a rollout is repeated after its actor was lost.
        max_video_bytes: most bytes of frames in memory; beyond them filming stops.
        keep_float64: as in `Collector`.
        **remote_kwargs: options of `ray.remote()`; `namespace` is the namespace of the name, `"swath"` by default.

    Raises:
        RuntimeError: Ray is not installed.
        ValueError: the name is taken, a number is out of range, or Swath itself sets an option.
        TypeError: an argument is of the wrong kind, or cannot be pickled.
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
        self._connect(options, name, namespace)

    @classmethod
    def from_name(cls, name: str, *, reward_keys: Any = ("next", "reward"), namespace: str | None = None) -> Self:
        """Return a handle of the worker with this name, from any process of the cluster, at once.

        Args:
            name: name of the worker.
            reward_keys: entries with the rewards of the rollouts that this handle submits.
            namespace: namespace of the name; `None` for `"swath"`.

        Raises:
            RuntimeError: Ray is not installed.
            ValueError: there is no actor of that name.
            TypeError: the actor of that name is no evaluation worker.
        """
        worker = cls.__new__(cls)
        options = _options(_refuse_use, policy_factory=_refuse_use, num_gpus=0, reward_keys=reward_keys, retries=0)
        cls._connect(worker, options, name, namespace or NAMESPACE, joins=True)
        return worker

    def _connect(self, options: EvaluatorOptions, name: str | None, namespace: str, *, joins: bool = False) -> None:
        address = None if name is None else (name, namespace)
        self._options, self._address, self._joins = options, address, joins
        workers = EvalWorkers(options, address, joins=joins)
        workers.begin(*([] if address is None else [partial(_check_name, *address, joins=joins)]))
        self._driver_id = workers.driver_id
        super().__init__(EvaluationService(options, workers, per_slot=True), end_shared=False)

    def submit(
        self, weights: Any, max_steps: int | None, *, deterministic: bool = True, break_when_any_done: bool = True
    ) -> None:
        """Request a rollout, and return at once. Earlier requests, also of other handles, are cancelled.

        Args:
            weights: of the policy: a module, a TensorDict, a mapping or a snapshot, copied now; `None`: no new weights.
            max_steps: most steps of each sub-env; `None`: until they are done, or `timeout_s` has passed.
            deterministic: whether the policy acts without exploration.
            break_when_any_done: stop with the first sub-env that is done; the rewards of the others until then are
                their returns. Set this to false for an unbiased mean over several sub-envs.

        Raises:
            Closed: after `shutdown`.
            TypeError: the weights are of an unknown kind.
            ValueError: `max_steps` is not a positive integer.
        """
        changes = {
            "max_steps": None if max_steps is None else count("max_steps", max_steps),
            "exploration_type": "DETERMINISTIC" if deterministic else "RANDOM",
            "reward_keys": self._options.reward_keys,
        }
        self._service.trigger(weights, request_fields={"until_any_done": break_when_any_done, "changes": changes})

    def poll(self, timeout: float | None = 0) -> dict[str, Any] | None:
        """Return the result of the last rollout of this handle, once; `None` if there is none yet.

        If the actor has a name and this handle has no rollout, return the newest result of the actor that no handle has
        read. A rollout is played to its end as long as some handle polls, also if its own handle is gone.

        Args:
            timeout: seconds to wait for it; `None`: until its deadline; briefly, if this handle has no rollout.

        Returns:
            `reward`, the mean return of the sub-envs, and `frames`, uint8 `[T, H, W, 3]` of sub-env 0 or `None`; also
            `reward_std`, `reward_min`, `reward_max`, `reward_median`, `reward_iqm`, `reward_ci_low`,
            `reward_ci_high`, `num_episodes`, `num_frames`, `episode_length`, `duration_s`, `fps`, `policy_version`,
            `frames_truncated`, and by sub-env `episode_rewards`, `episode_lengths`, `truncated`.

        Raises:
            Closed: it was shut down while this waited.
            Superseded: another handle submitted.
            WorkerLost, WorkerLate, PlacementFailed: the actor died, took too long, or found no room.
            Exception: code of the user raised it.
        """
        try:
            result = self._service.wait(timeout)
            if result is not None:
                self._mark_read()
            elif self._address is not None:
                result = self._fetch_unread(timeout)
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

    def _fetch_unread(self, timeout: float | None) -> EvalResult | None:
        """Wait for the newest result that no handle has read, and return it."""
        service, deadline = self._service, monotonic() + (SETTLE_S if timeout is None else timeout)
        while not service.closed and not service.pending:
            service.trigger(None, fetch_unread=True)
            result = service.wait(None if timeout is None else max(ANSWER_S, deadline - monotonic()))
            if result is not None or monotonic() >= deadline:
                return result
            service.wait_until_closed(FETCH_EVERY_S)
        return None

    def _mark_read(self) -> None:
        """Tell an actor with a name that its result was read, so that no other handle gets it."""
        if self._address is not None:
            with suppress(ValueError):  # the actor is gone, and its results with it
                reference = registered(*self._address).mark_read.remote(self._driver_id)
                import_extra("ray", extra="ray", purpose="for RayEvalWorker").wait([reference], timeout=ANSWER_S)

    def __repr__(self) -> str:
        """Return a status line, without a call of the actor."""
        service, name = self._service, "" if self._address is None else f"{self._address[0]!r} "
        state = "closed" if service.closed else "a rollout is pending" if service.pending else "idle"
        return f"<RayEvalWorker {name}{state}>"


def _refuse_use() -> Never:
    """Raise `AssertionError`: the actor has built its own env and policy."""
    raise AssertionError("the actor has its own env and policy")


def _check_name(name: str, namespace: str, *, joins: bool) -> None:
    """Check that the name is free, or that it names a worker to join."""
    address = f"named {name!r} in namespace {namespace!r}"
    try:
        actor = registered(name, namespace)
    except ValueError:
        if joins:
            raise ValueError(f"there is no actor {address}: it was shut down, is lost, or has another name") from None
        return
    if not joins:
        raise ValueError(f"there is an actor {address} already; reach it with RayEvalWorker.from_name()")
    if not all(hasattr(actor, method) for method in PUBLIC):
        raise TypeError(f"the actor {address} is no RayEvalWorker: {actor}")
