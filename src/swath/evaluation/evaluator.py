"""`Evaluator`: whole episodes with the weights of the moment, beside the training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from operator import index
from typing import Any

from tensordict import TensorDict

from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import EvalResult
from swath.evaluation.service import EvaluationService, Face
from swath.evaluation.workers import EvalWorkers
from swath.nearest import with_options
from swath.rollout.hosts.sources import claim, require_unused
from swath.weights.schemes import WeightStrategy


class Evaluator(Face):
    """Evaluates a policy in whole episodes, now or beside the training, in a thread, in processes or on Ray.

    Each evaluation plays exactly `num_trajectories` episodes with one set of weights. Who plays which episode and from
    which seed is fixed before the first step, so quick episodes count no more than slow ones. The same weights give the
    same numbers, whatever the backend, the number of envs or of workers. Evaluations that explore in a thread are the
    exception: they draw from the process's generators.

    Args:
        env: a gymnasium id, a callable, an env, a vector env, or a list of one kind (k tasks: episode i runs on entry
            i mod k). An instance belongs to the evaluator from now on.
        policy: any policy form; a private copy of it acts. With a thread only. Modules, also those that an object with
            `predict` has as `policy`, act with their weights of each request, anything else as it was at construction.
        policy_factory: builds the policy where it runs; gets the env if it wants one.
        num_trajectories: episodes of an evaluation, or of one round of it.
        max_steps: most steps of an episode, which is truncated then; `None` for no such limit.
        frames_per_batch: env steps of a worker between two reports of progress; `None`: `max_steps`, else 1000.
        collector_cls: `None` or `"Collector"`; `"MultiSyncCollector"` runs it in a child process; or these classes.
        collector_kwargs: settings under the names of collectors: `create_env_kwargs`, `env_device`, `policy_device`,
            `compile_policy`, `cudagraph_policy`, `num_threads`; for the trajectories of `metrics_fn`: `traj_format`,
            `storing_device`, `postproc`.
        weight_sync_schemes: schemes by model id: the models whose weights can be sent; it then runs in a child process.
        log_prefix: keys of results are `f"{log_prefix}/{name}"`.
        reward_keys: entry of the env that is its reward, or a list of them: their mean.
        done_keys: entry that ends an episode, or a list of them: when all are set; the env's own end does so too.
        device: where the policy runs; `None` leaves it where it is.
        exploration_type: how the policy picks actions.
        metrics_fn: called with the trajectories of each evaluation; what it returns is added to the result.
        dump_video: whether TorchRL's recorders among the env's transforms write after each evaluation what they have
            seen; those of the first env do, others forget it.
        on_result: called with each result as a flat TensorDict, before it can be read, in a thread of ours.
        busy_policy: what `trigger_eval` does while one is pending: `"error"`, `"queue"`, `"skip"`, `"latest"`.
        backend: `"thread"`, `"process"` or `"ray"`.
        init_fn: runs first in each new worker process, before torch is imported there; with a thread there is none.
        num_gpus: GPUs that Ray is asked for, by worker; 0 on machines without.
        ray_kwargs: further options of `ray.remote`.
        seed: root of all seeds; `None` for a fresh one for each evaluation.
        num_envs: envs that each worker steps together; `None`: 1, or the size of an instance or list.
        num_workers: workers that share the episodes.
        until_ci_halfwidth: play rounds until half the width of the interval of the mean return is at most this.
        max_trajectories: most episodes of all rounds; `None`: 10 rounds.
        record_video: how many of the first episodes to film, a frame after each step. A vector env in SAME_STEP mode
            has begun the next episode by then: its last frame shows that.
        video_dir: write films there, as mp4; `None` leaves them in the result as `video`.
        video_fps: their frame rate; `None`: the env's own, else 30.
        max_video_bytes: frames held at most; beyond it filming stops.
        per_episode: add `episode_rewards` and `episode_lengths`.
        keep_best: where to keep the weights with the best mean return: a `.safetensors` file, beside which the result
            is written as JSON, or a folder. What is found there sets the bar.
        retries: how many workers may be lost within one evaluation.
        keep_float64: as in `Collector`.
        timeout_s: seconds for one evaluation.
        start_timeout_s: seconds for a new worker to be up, once it has been placed.
        placement_timeout_s: seconds for Ray to place one.

    Raises:
        ValueError: a number out of range, options that contradict each other, an unknown backend or busy policy.
        TypeError: a policy that cannot be copied, or something of the wrong kind.
        RuntimeError: `backend="ray"` without Ray.
    """

    @with_options(EvaluatorOptions)
    def __init__(self, options: EvaluatorOptions) -> None:
        require_unused(options.env)
        self._options = options
        super().__init__(EvaluationService(options, EvalWorkers(options)))
        claim(options.env, self._service)

    def evaluate(
        self, weights: Any = None, step: int | None = None, *, weights_dict: Mapping[str, Any] | None = None
    ) -> EvalResult:
        """Evaluate now, after what was asked for before, and wait for the result.

        Args:
            weights: of the policy: a module, a TensorDict or a mapping. `None`: the policy as it is now; with a factory
                what was last sent.
            step: the training step, kept with the result; `None` counts.
            weights_dict: weights by model id.

        Raises:
            Closed: the evaluator was shut down.
            WorkerLost, WorkerLate, PlacementFailed: what became of the workers.
            Exception: what code of the user raised, as its own type.
        """
        return self._service.evaluate(weights, step, weights_dict)

    def trigger_eval(
        self, weights: Any = None, step: int | None = None, *, weights_dict: Mapping[str, Any] | None = None
    ) -> bool:
        """Ask for an evaluation and return as soon as the weights are copied; `poll` or `wait` gives the result.

        Args:
            weights: as `evaluate` takes them, of this moment.
            step: the training step, kept with the result; `None` counts.
            weights_dict: weights by model id.

        Returns:
            Whether it was accepted; false only with `busy_policy="skip"`.

        Raises:
            RuntimeError: one is pending, with `busy_policy="error"`; or too many results are unread.
            Closed: the evaluator was shut down.
        """
        return self._service.trigger(weights, step, weights_dict)

    def poll(self, timeout: float | None = 0) -> EvalResult | None:
        """The oldest unread result of `trigger_eval`; `None` if there is none within so many seconds.

        Raises:
            Exception: that evaluation failed; raised once.
        """
        return self._service.wait(timeout)

    def wait(self, timeout: float | None = None) -> EvalResult | None:
        """As `poll`, until there is one; `None` at once if none is unread or pending."""
        return self._service.wait(timeout)

    @property
    def pending(self) -> bool:
        """Whether an accepted request has no readable result; false exactly when all can be had by `poll`."""
        return self._service.pending

    @property
    def closed(self) -> bool:
        """Whether it was shut down."""
        return self._service.closed

    @property
    def last_callback_error(self) -> BaseException | None:
        """What `on_result` raised last."""
        return self._service.reporter.last_error

    def cancel(self) -> int:
        """Drop waiting requests of `trigger_eval`, stop a running one; how many. They have no result."""
        return self._service.cancel()

    def stats(self) -> dict[str, float]:
        """Counts of what has happened, and of what is going on; the newest result in short. Asks no worker.

        Of the result there are mean, interval, number of episodes and step, under their names in results; nothing
        before the first.
        """
        return self._service.stats()

    def state_dict(self) -> dict[str, Any]:
        """What another evaluator needs to go on counting.

        Raises:
            RuntimeError: there is work that is pending, queued or unread.
        """
        queue, keeper = self._service.queue_at_rest(), self._service.reporter.keeper
        best = None if keeper is None else keeper.bar
        return {"step_counter": queue.step_counter, "policy_version": queue.policy_version, "best": best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from there.

        Raises:
            RuntimeError: there is work that is pending, queued or unread.
            KeyError, TypeError: it is not what `state_dict` gives; nothing has changed.
        """
        steps, versions, best = index(state["step_counter"]), index(state["policy_version"]), state["best"]
        queue, keeper = self._service.queue_at_rest(), self._service.reporter.keeper
        queue.step_counter, queue.policy_version = steps, versions
        if keeper is not None and best is not None:
            keeper.bar = float(best)

    @staticmethod
    def extract_weights(policy: Any) -> TensorDict:
        """Parameters and buffers of a policy, that share no memory with it.

        Returns:
            Nested TensorDict of batch size `[]` on the CPU; a module's extra state is under `"__extra_state__"`.

        Raises:
            TypeError: it has no weights.
        """
        weights: TensorDict = copy.deepcopy(WeightStrategy("tensordict").extract_weights(policy).cpu())
        return weights

    def __repr__(self) -> str:
        """A status line."""
        counts, now, n = self._service.stats(), self._service.progress(), self._options.num_workers
        done = f"{counts['queued']} waiting, {counts['unread']} unread, {counts['completed']} done"
        workers = f"{n} worker{'s' * (n > 1)}"
        return f"<Evaluator {self._options.place} {workers}: {now}{done}{', closed' * self.closed}>"
