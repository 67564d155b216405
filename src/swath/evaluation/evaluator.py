"""`Evaluator`: whole episodes with the newest weights, while the training goes on."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from operator import index
from typing import Any

from tensordict import TensorDict

from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import EvalResult
from swath.evaluation.service import EvaluationService, ServiceOwner
from swath.evaluation.workers import EvalWorkers
from swath.nearest import with_options
from swath.rollout.hosts.sources import claim, require_unused
from swath.weights.schemes import WeightStrategy


class Evaluator(ServiceOwner):
    """Evaluates a policy in whole episodes, at once or in the background, in a thread, in processes or on Ray.

    Each evaluation plays exactly `num_trajectories` episodes with one set of weights. The env and the seed of each
    episode are fixed before the first step, so quick episodes count no more than slow ones. The same weights give the
    same numbers, whatever the backend, the number of envs or of workers. Evaluations that explore in a thread are the
    exception: they draw from the process's generators.

    Args:
        env: a gymnasium id, a callable, an env, a vector env, or a list of one kind (k tasks: episode i runs on entry
            i mod k). An instance belongs to the evaluator from now on.
        policy: any policy form; a private copy of it acts. With a thread only. A module, also the `policy` of an object
            with `predict`, acts with its weights of each request, any other policy as it was at construction.
        policy_factory: builds the policy where it runs; gets the env if it wants one.
        num_trajectories: episodes of an evaluation, or of one round of it.
        max_steps: most steps of an episode, which is truncated then; `None` for no limit.
        frames_per_batch: env steps of a worker between two reports of progress; `None`: `max_steps`, else 1000.
        collector_cls: `None` or `"Collector"`; `"MultiSyncCollector"` runs it in a child process; or these classes.
        collector_kwargs: settings under the names of collectors: `create_env_kwargs`, `env_device`, `policy_device`,
            `compile_policy`, `cudagraph_policy`, `num_threads`; for the trajectories of `metrics_fn`: `traj_format`,
            `storing_device`, `postproc`.
        weight_sync_schemes: schemes by model id: the models whose weights can be sent; it then runs in a child process.
        log_prefix: keys of results are `f"{log_prefix}/{name}"`.
        reward_keys: the env's entry with the reward, or a list of entries: their mean.
        done_keys: the entry that ends an episode, or a list of entries: when all are set; the env's end ends it too.
        device: where the policy runs; `None` leaves it where it is.
        exploration_type: how the policy picks actions.
        metrics_fn: called with the trajectories of each evaluation; returns further numbers of the result.
        dump_video: whether TorchRL's recorders among the transforms of the first env write a file after each
            evaluation; recorders of other envs do not.
        on_result: called with each result as a flat TensorDict, before it can be read, in the evaluator's thread.
        busy_policy: the answer of `trigger_eval` while an evaluation is pending: `"error"`, `"queue"`, `"skip"` or
            `"latest"`.
        backend: `"thread"`, `"process"` or `"ray"`.
        init_fn: runs first in each new worker process, before torch is imported there; with a thread there is none.
        num_gpus: GPUs of each worker on Ray; 0 on machines without.
        ray_kwargs: further options of `ray.remote`.
        seed: root of all seeds; `None` for a fresh one for each evaluation.
        num_envs: envs that each worker steps together; `None`: 1, or the size of an instance or list.
        num_workers: workers that share the episodes.
        env_processes: the number of processes that a worker's envs live in; as in `Collector`.
        step_timeout_s: seconds that an env process may take for a step or a reset.
        until_ci_halfwidth: play rounds until half the width of the interval of the mean return is at most this.
        max_trajectories: most episodes of all rounds; `None`: 10 rounds.
        record_video: how many of the first episodes to film, a frame after each step. A vector env in SAME_STEP mode
            has begun the next episode by then: its last frame shows that.
        video_dir: write films there, as mp4; `None` leaves them in the result as `video`.
        video_fps: their frame rate; `None`: the env's own, else 30.
        max_video_bytes: most bytes of frames in memory; beyond them filming stops.
        per_episode: add `episode_rewards` and `episode_lengths`.
        keep_best: a path for the weights with the best mean return: a `.safetensors` file, whose folder also gets the
            result as JSON, or a folder. An existing result must be beaten.
        retries: how many workers may be lost within one evaluation.
        keep_float64: as in `Collector`.
        timeout_s: seconds for one evaluation.
        start_timeout_s: seconds for a new worker to be up, once it has been placed.
        placement_timeout_s: seconds for Ray to place one.

    Raises:
        ValueError: a number is out of range, options contradict each other, or a backend or busy policy is unknown.
        TypeError: the policy cannot be copied, or an argument is of the wrong kind.
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
        """Evaluate after all earlier requests, and wait for the result.

        Args:
            weights: of the policy: a module, a TensorDict or a mapping. `None`: the present weights of the policy; with
                a factory the weights that were sent last.
            step: the training step, kept with the result; `None`: the last plus 1.
            weights_dict: weights by model id.

        Raises:
            Closed: the evaluator was shut down.
            WorkerLost, WorkerLate, PlacementFailed: workers died, took too long, or found no room.
            Exception: code of the user raised it.
        """
        return self._service.evaluate(weights, step, weights_dict)

    def trigger_eval(
        self, weights: Any = None, step: int | None = None, *, weights_dict: Mapping[str, Any] | None = None
    ) -> bool:
        """Request an evaluation and return as soon as the weights are copied; `poll` or `wait` returns the result.

        Args:
            weights: weights, as for `evaluate`; they are copied now.
            step: the training step, kept with the result; `None`: the last plus 1.
            weights_dict: weights by model id.

        Returns:
            Whether it was accepted; false only with `busy_policy="skip"`.

        Raises:
            RuntimeError: an evaluation is pending, with `busy_policy="error"`; or too many results are unread.
            Closed: the evaluator was shut down.
        """
        return self._service.trigger(weights, step, weights_dict)

    def poll(self, timeout: float | None = 0) -> EvalResult | None:
        """Return the oldest unread result of `trigger_eval`; `None` if there is none within `timeout` seconds.

        Raises:
            Exception: that evaluation failed; this is raised once.
        """
        return self._service.wait(timeout)

    def wait(self, timeout: float | None = None) -> EvalResult | None:
        """Wait for the oldest unread result of `trigger_eval`; return `None` at once if none is unread or pending."""
        return self._service.wait(timeout)

    @property
    def pending(self) -> bool:
        """Tell whether the result of an accepted request is still to come; if not, `poll` returns every result."""
        return self._service.pending

    @property
    def closed(self) -> bool:
        """Tell whether the evaluator was shut down."""
        return self._service.closed

    @property
    def last_callback_error(self) -> BaseException | None:
        """Return the newest exception of `on_result`."""
        return self._service.reporter.last_error

    def cancel(self) -> int:
        """Drop waiting requests of `trigger_eval` and stop a running one; return how many. They have no result."""
        return self._service.cancel()

    def stats(self) -> dict[str, float]:
        """Return counts of past and present events, and the newest result in short. No worker is called.

        Of the result there are mean, interval, number of episodes and step, under their names in results; none before
        the first result.
        """
        return self._service.stats()

    def state_dict(self) -> dict[str, Any]:
        """Return the counts with which another evaluator can go on.

        Raises:
            RuntimeError: there is work that is pending, queued or unread.
        """
        queue, best = self._service.idle_queue(), self._service.reporter.best
        reward = None if best is None else best.reward
        return {"step_counter": queue.step_counter, "policy_version": queue.policy_version, "best": reward}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the counts of another evaluator.

        Raises:
            RuntimeError: there is work that is pending, queued or unread.
            KeyError, TypeError, ValueError: the state is not one of `state_dict`; nothing has changed.
        """
        step, version, best = index(state["step_counter"]), index(state["policy_version"]), state["best"]
        self._service.continue_from(step, version, None if best is None else float(best))

    @staticmethod
    def extract_weights(policy: Any) -> TensorDict:
        """Return copies of the parameters and buffers of a policy.

        Returns:
            Nested TensorDict of batch size `[]` on the CPU; a module's extra state is under `"__extra_state__"`.

        Raises:
            TypeError: the policy has no weights.
        """
        weights: TensorDict = copy.deepcopy(WeightStrategy("tensordict").extract_weights(policy).cpu())
        return weights

    def __repr__(self) -> str:
        """Return a status line."""
        counts, progress, n = self._service.stats(), self._service.progress(), self._options.num_workers
        done = f"{counts['queued']} waiting, {counts['unread']} unread, {counts['completed']} done"
        workers = f"{n} worker{'' if n == 1 else 's'}"
        return f"<Evaluator {self._options.place} {workers}: {progress}{done}{', closed' if self.closed else ''}>"
