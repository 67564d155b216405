"""What the loop asks of an env source: B envs stepped together.

    leaves of actions [B, …] ──▶ step ──▶ Transition: true next observations, rewards, who ended
                                 reset ──▶ observations with which the next episodes begin

A host never resets by itself in a way that can be seen: `Transition.observation` is what the step led to, also at the
end of an episode, and the observation of the next episode comes from `reset`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from swath.rollout.hosts.specs import ArraySpec, HostSpec
from swath.rollout.spaces import Array, Leaves

Ended = tuple[int, bool, bool]
"""An episode that ended: env, terminated, truncated."""

Infos = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""What envs said beside: one mapping per env, or a vector env's mapping of batches. `infos.info_of` reads one env's."""


def first_of(env: Any) -> Any:
    """The first of a list of envs; any other env, as `Host.env` gives it, itself."""
    return env[0] if isinstance(env, list) else env


def fps_of(env: Any) -> float | None:
    """Frames per second of what the first of the envs renders, as its metadata say; `None` if they do not."""
    rate = (getattr(first_of(env), "metadata", None) or {}).get("render_fps")
    return float(rate) if rate else None


class EnvRaised(Exception):  # noqa: N818
    """An env raised while it was reset. Stays inside the library: the service raises `cause` with a note.

    Attributes:
        env: which env.
        cause: what it raised.
    """

    def __init__(self, env: int, cause: Exception) -> None:
        super().__init__(env, cause)
        self.env = env
        self.cause = cause


def with_truncated(ended: Sequence[Ended], envs: Sequence[int]) -> list[Ended]:
    """`ended` with these envs' episodes truncated too, in env order."""
    flags = {env: (terminated, truncated) for env, terminated, truncated in ended}
    flags.update({env: (flags.get(env, (False, False))[0], True) for env in envs})
    return [(env, *flags[env]) for env in sorted(flags)]


@dataclass(slots=True)
class Transition:
    """What one step of B envs led to.

    Attributes:
        observation: leaves `[B, …]`; fresh arrays that nobody writes again. At an end the true last observation.
        reward: float array `[B]`, as the env gave it.
        ended: episodes that ended with this step, in env order.
        void: envs whose row is no transition (a `NEXT_STEP` vector env reset itself and ignored the action).
        failed: envs that raised, with the exception; their rows hold nothing.
        info: what the envs said beside, untouched.
    """

    observation: Leaves
    reward: Array
    ended: Sequence[Ended] = ()
    void: Sequence[int] = ()
    failed: Sequence[tuple[int, Exception]] = ()
    info: Infos = ()


@runtime_checkable
class Stateful(Protocol):
    """A host whose envs have a state beside the simulators' own: that of their transforms."""

    def env_state(self) -> Mapping[str, Any]:
        """What is worth saving."""

    def load_env_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what was saved."""


class Host(Protocol):
    """B envs stepped together; used by one thread at a time."""

    @property
    def spec(self) -> HostSpec:
        """What the envs look like."""

    @property
    def env(self) -> Any:
        """The live env object: a single env, a vector env, or a list of envs."""

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones; with one seed per env or from the envs' own state."""

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs: `onto` with their rows replaced, in fresh arrays. `seeds` go with `envs`.

        An env whose seed is `None` begins from its own random state. A host whose envs begin by themselves within the
        next step returns `onto` and reports the row as void.
        """

    def step(self, action: Leaves) -> Transition:
        """Advance every env that is not retired. `action` begins with the action leaves `[B, …]`; more is ignored."""

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Advance this env alone; the other rows of the answer mean nothing."""

    def rebuild(self) -> Leaves:
        """Close everything, build it anew and begin an episode in every env.

        Raises:
            RuntimeError: there is nothing to build from: the source was an instance.
        """

    def retire(self, envs: Sequence[int]) -> None:
        """Step these envs no more; their rows mean nothing until `reset_all`."""

    def render(self, env: int) -> Array | None:
        """A frame `[H, W, 3]` uint8 of this env, or `None` if it does not render."""

    def seed_of(self, env: int) -> int | None:
        """The seed this env was last given, if it was given one."""

    def close(self) -> None:
        """Close the envs; twice is fine."""


class ArrayHost(Host, Protocol):
    """A host whose leaves are arrays."""

    @property
    def spec(self) -> ArraySpec:
        """What the envs look like."""
