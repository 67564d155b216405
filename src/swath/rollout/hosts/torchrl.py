"""The host for TorchRL's envs: any `EnvBase`, batched or not, with whatever keys it has.

    [root] ──▶ policy writes ──▶ env.step_and_maybe_reset ──▶ "next" ──▶ [root of the next step]

The only leaf is a TensorDict `[*B]`. Where each episode has a seed of its own (evaluations), the env is stepped and
reset by two calls instead.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.keys import DONE, Key, as_key, as_tuple
from swath.rollout.hosts.base import Ended, EnvRaised, Transition
from swath.rollout.hosts.closing import close_broken
from swath.rollout.hosts.specs import TensorDictSpec
from swath.rollout.hosts.tensordict_reading import StepReading, ends_of, groups_of, pixels_of, reward_of
from swath.rollout.hosts.torchrl_masks import drawing
from swath.rollout.spaces import Array, Leaves

_RESET = "_reset"
_FOUND_NONE = (KeyError, AttributeError, TypeError)


def is_torchrl_env(value: object) -> bool:
    """Whether this is an `EnvBase`; torchrl is not imported for it: whoever has such an env has done that."""
    return isinstance(value, getattr(sys.modules.get("torchrl.envs"), "EnvBase", ()))


class TorchRLHost:
    """An `EnvBase`, stepped as a whole; episodes begin by its partial resets.

    Args:
        env: the env.
        make: builds it anew; `None` for an instance of the user's.
        resets: whether envs begin their next episodes within the step that ends one, as in TorchRL's own collectors;
            if not, only when `reset` is called.
    """

    def __init__(self, env: Any, make: Callable[[], Any] | None = None, *, resets: bool = True) -> None:
        self._env, self._make, self._resets = _started(env), make, resets
        self._seed: int | None = None
        self._closed = False
        self._begun: list[int] = []
        self._following: TensorDictBase | None = None
        self.spec = spec_of(lambda: self._env)
        self._groups = groups_of(self.spec.done)
        self._any_done = any_done_of(self.spec.done)
        self._ends: Callable[[TensorDictBase], list[Ended]] = self._flagged
        self._reward: Callable[[TensorDictBase], Array] = lambda following: reward_of(following, self.spec)

    @property
    def env(self) -> Any:
        """The env."""
        return self._env

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env; the first seed is that of all, and the env deals it out."""
        try:
            if seeds is not None:
                self._set_seed([int(seed) for seed in seeds])
            root = self._env.reset()
            return [root if self._env.device is None else root.to(self._env.device)]
        except Exception as error:
            raise EnvRaised(0, error) from error

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; only an env that is no batch takes a seed for it."""
        if seeds is not None and seeds[0] is not None and self.spec.seeding == "episode":
            return self.reset_all([seeds[0]])
        envs = [env for env in envs if env not in self._begun]
        try:
            return [self._begin(onto[0].copy(), envs)] if envs else onto
        except Exception as error:
            raise EnvRaised(envs[0], error) from error

    def step(self, action: Leaves) -> Transition:
        """Advance every env: `action` is the TensorDict that the policy has written into."""
        try:
            made, root = self._advance(action[0])
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            cause = _explained(error, action[0], self.spec.acted)
            everyone = [(env, cause) for env in range(self.spec.num_envs)]
            return Transition([], np.zeros(self.spec.num_envs), failed=everyone)
        action[0] = made
        self._following = following = made.get("next")
        ended = self._ends(following) if self._any_done(following) else []
        self._begun = [env for env, _, _ in ended] if self._resets else []
        return Transition([root], self._reward(following), ended)

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Not possible: an `EnvBase` steps as a whole."""
        raise RuntimeError(f"env {env} of {self._env} cannot be stepped alone (got {len(action)} leaves)")

    def rebuild(self) -> Leaves:
        """Close the env, build another and reset it."""
        if self._make is None:
            raise RuntimeError(f"{self._env} was given as an instance and cannot be built anew; pass a callable")
        close_broken(self.close)
        self._env, self._closed = _started(self._make()), False
        return self.reset_all()

    def retire(self, envs: Sequence[int]) -> None:
        """Nothing to do: rows of these envs are ignored by whoever retired them."""

    def render(self, env: int) -> Array | None:
        """A frame of this env, if it renders arrays; else the pixels that it has written, if it has."""
        batched, written = self.spec.num_envs > 1, pixels_of(self._following, env, self.spec.batch_shape)
        if (batched and written is not None) or not hasattr(self._env, "render"):
            return written
        frame = self._env.render()
        if batched and isinstance(frame, list | tuple):  # one of each
            frame = frame[env]
        return frame if isinstance(frame, np.ndarray) else written

    def seed_of(self, env: int) -> int | None:  # noqa: ARG002  the env deals it out in its own way
        """The seed that was given to the env."""
        return self._seed

    def close(self) -> None:
        """Close the env; twice is fine."""
        if not self._closed:
            self._closed = True
            if not getattr(self._env, "is_closed", False):
                self._env.close()

    def read(self, rewards: Sequence[Key], dones: Sequence[Key]) -> None:
        """From now on rewards are the mean of these entries, and all of these flags together end an episode too.

        Keys are those under `"next"`.
        """
        reading = StepReading(self.spec, rewards, dones)
        self._reward, self._ends = reading.reward, reading.ends
        self._any_done = lambda _: True

    def env_state(self) -> Mapping[str, Any]:
        """The state of the transforms."""
        holder = self._state_holder()
        return OrderedDict() if holder is None else holder.state_dict()

    def load_env_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the transforms."""
        holder = self._state_holder()
        if holder is not None and state:
            holder.load_state_dict(state)

    def _advance(self, td: Any) -> tuple[Any, Any]:
        """What the step has written, and the root of the next one."""
        if self._resets:
            return self._env.step_and_maybe_reset(td)  # type: ignore[no-any-return]
        made = self._env.step(td)
        return made, self._env.step_mdp(made)

    def _begin(self, root: TensorDictBase, envs: Sequence[int]) -> Any:
        self._mark(root, envs)
        return self._env.reset(root, select_reset_only=True)

    def _mark(self, root: TensorDictBase, envs: Sequence[int]) -> None:
        """Ask for resets of whole envs, whichever of their groups ended."""
        for group in self._groups:
            shape = root.get(next(iter(group.values()))).shape
            mask = torch.zeros(shape, dtype=torch.bool, device=root.device)
            mask.view(self.spec.num_envs, -1)[list(envs)] = True
            *parents, _ = as_tuple(next(iter(group.values())))
            root.set((*parents, _RESET), mask)

    def _flagged(self, following: TensorDictBase) -> list[Ended]:
        """Episodes that ended: where any flag that counts is set."""
        return ends_of(following, self._groups, self.spec.num_envs)

    def _set_seed(self, seeds: Sequence[int]) -> None:
        same = len(seeds) > 1 and len(set(seeds)) == 1
        self._seed = seeds[0]
        self._env.set_seed(seeds[0], static_seed=same)

    def _state_holder(self) -> Any:
        if isinstance(self._env, sys.modules["torchrl.envs"].TransformedEnv):
            return self._env.transform
        envs = sys.modules["torchrl.envs"]
        return self._env if isinstance(self._env, envs.SerialEnv | envs.ParallelEnv) else None


def _started(env: Any) -> Any:
    """The env; one that steps its envs here has built them, so that others can look into them."""
    if isinstance(env, sys.modules["torchrl.envs"].SerialEnv) and env.is_closed:
        env.start()
    return env


def spec_of(live: Callable[[], Any]) -> TensorDictSpec:
    """What the `EnvBase` looks like that `live` gives; one that is built anew looks the same."""
    env = live()
    return TensorDictSpec(
        num_envs=int(np.prod(env.batch_size, dtype=np.int64)),
        batch_shape=tuple(env.batch_size),
        observed=_keys(env.observation_keys),
        acted=_keys(env.action_keys),
        carried=_keys(env.state_keys),
        rewarded=_keys(env.reward_keys),
        done=effective(_keys(env.done_keys)),
        flags=_keys(env.done_keys),
        draw=drawing(live),
        imagine=lambda: live().fake_tensordict(),
        env=live,
        seeding="layout" if env.batch_size else "episode",
    )


def _explained(error: Exception, made: TensorDictBase, acted: Sequence[Key]) -> Exception:
    """The error of a step; a plainer one where the env looked for an action and found none."""
    there = _keys(list(made.keys(include_nested=True)))
    missing = [key for key in acted if key not in there]
    if not missing or not isinstance(error, _FOUND_NONE):
        return error
    explained = KeyError(f"the policy must answer with the action {missing}; the entries are {sorted(map(str, there))}")
    explained.__cause__ = error
    return explained


def effective(done: Sequence[Key]) -> tuple[Key, ...]:
    """The end flags that count: the flags of a group prevail over those of groups inside it."""
    parents = {as_tuple(key)[:-1] for key in done}
    return tuple(key for key in done if not any(_inside(as_tuple(key)[:-1], parent) for parent in parents))


def any_done_of(done: Sequence[Key]) -> Callable[[TensorDictBase], bool]:
    """How to see at a glance whether any flag is set in a `"next"`; `"done"` says it for its group."""
    telling = [group.get(DONE) for group in groups_of(done)]
    keys = list(done) if None in telling else telling
    return lambda following: any(bool(following.get(key).any()) for key in keys)


def _inside(inner: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _keys(keys: Sequence[Any]) -> tuple[Key, ...]:
    return tuple(as_key(as_tuple(key)) for key in keys)
