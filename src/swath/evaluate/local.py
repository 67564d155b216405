"""Evaluations in the calling thread, without worker or queue: what `evaluate_policy` stands on.

env ──▶ make_host ─┐
                   ├──▶ Runner ──▶ Rounds ──▶ EvalResult
policy ─▶ private ─┘
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Self

from gymnasium.vector import AutoresetMode

from swath.errors import WorkerLate
from swath.evaluate.acting import EvalPolicy
from swath.evaluate.arena import make_host, only_together
from swath.evaluate.layers import counts_for_all, frozen, is_monitored
from swath.evaluate.numbers import Facts, Rounds, result_of
from swath.evaluate.privacy import private, private_streams
from swath.evaluate.quota import Quota
from swath.evaluate.reading import Scoring, if_monitored, monitored, own_sums
from swath.evaluate.request import EvalRequest
from swath.evaluate.result import EvalResult
from swath.evaluate.runner import Manner, Runner, Watcher
from swath.rollout.hosts.base import ArraySpec


class LocalEvaluation:
    """Evaluations one after another in the calling thread, on the same envs. Used by one thread at a time.

    Envs that are built here are closed by `close()`; instances are borrowed: they are reset and stepped, their running
    statistics stand still meanwhile, and nothing else of them changes.

    Args:
        env: a gymnasium id, a callable, an env, a vector env, a Stable-Baselines3 `VecEnv`, or a list of one kind.
        num_envs: how many are stepped together; `None`: 1 for an id or callable, the size of an instance or list.
    """

    def __init__(self, env: Any, num_envs: int | None = None) -> None:
        self._host, self._owned = make_host(env, num_envs)

    @property
    def env(self) -> Any:
        """The env, vector env or list of envs that is stepped."""
        return self._host.env

    def run(self, policy: Any, request: EvalRequest, watchers: Sequence[Watcher] = ()) -> EvalResult:
        """One evaluation of the policy as it is now.

        It runs a private copy of the policy (`predict` objects: themselves) in evaluation mode and without gradients;
        the process's random states are the same after as before.

        Raises:
            WorkerLate: it took longer than the request allows.
            Exception: what env, policy or a watcher raised, as its own type with a note; this object stays usable.
        """
        host = self._host
        with frozen(host.env), private(policy) as mine, private_streams(request.seed, mine):
            acting = EvalPolicy(mine, host.spec, request.exploration_type, request.seed)
            runner = Runner(host, acting.bind, request, self._manner(request, watchers))
            rounds, seconds = _played(runner, request)
        return result_of(rounds, Facts(seconds, runner.seeding), request, "eval")

    def close(self) -> None:
        """Close the envs that were built here; twice is fine."""
        if self._owned:
            self._host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _manner(self, request: EvalRequest, watchers: Sequence[Watcher]) -> Manner:
        reading = request.reading.applied_to(self._host)
        if not isinstance(self._host.spec, ArraySpec):
            return Manner(reading, only_together(self._host, request), watchers)
        return Manner(_trusting(self.env), only_together(self._host, request) or counts_for_all(self.env), watchers)


def _trusting(env: Any) -> Scoring:
    """Who is believed about ends and returns."""
    if counts_for_all(env) and env.metadata.get("autoreset_mode") == AutoresetMode.DISABLED:
        return own_sums  # a reset by mask, which this mode needs, makes gymnasium's vector statistics lose their sums
    return monitored if is_monitored(env) else if_monitored


def _played(runner: Runner, request: EvalRequest) -> tuple[Rounds, float]:
    """All rounds, and the seconds they took."""
    rounds, began = Rounds(request), monotonic()
    while rounds.stopped is None:
        for _ in runner.play(Quota(rounds.due, runner.num_slots)):
            if monotonic() - began > request.limits.timeout_s:
                raise _late(runner, request)
        rounds.played(runner.rows)
    return rounds, monotonic() - began


def _late(runner: Runner, request: EvalRequest) -> WorkerLate:
    seconds = request.limits.timeout_s
    return WorkerLate(
        f"the evaluation took longer than timeout_s={seconds}: {runner.progress}; steps made in the unfinished ones, "
        f"by slot: {runner.unfinished}; give it more time, fewer episodes, or max_steps",
        workers=(0,),
        deadline=seconds,
    )
