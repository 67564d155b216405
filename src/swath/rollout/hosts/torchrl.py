"""The host for TorchRL's envs: any `EnvBase`, batched or not, with whatever keys it has.

    [root] ──▶ policy writes ──▶ env.step writes "next" ──▶ step_mdp ──▶ [root of the next step]
                                                                └── where done: env.maybe_reset, asked for by the loop

The only leaf is a TensorDict `[*B]`. This is the one file that imports torchrl, and only when such an env is there.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from inspect import getattr_static
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.keys import Key, as_key, as_tuple
from swath.rollout.hosts.base import Ended, EnvRaised, Transition
from swath.rollout.hosts.closing import close_broken
from swath.rollout.hosts.specs import TensorDictSpec
from swath.rollout.hosts.torchrl_gym import short_way
from swath.rollout.hosts.torchrl_masks import drawing
from swath.rollout.hosts.torchrl_step import step_of
from swath.rollout.policies.absent import without_searches
from swath.rollout.spaces import Array, Leaves
from swath.rollout.tensordicts import entries_of

_DONE, _TERMINATED, _TRUNCATED, _RESET = "done", "terminated", "truncated", "_reset"
_FOUND_NONE = (KeyError, AttributeError, TypeError)
_OWN_WAYS = ("_torchrl_native_autoreset", "_compiled_step_and_maybe_reset")


def is_torchrl_env(value: object) -> bool:
    """Whether this is an `EnvBase`; torchrl is not imported for it: whoever has such an env has done that."""
    module = sys.modules.get("torchrl.envs.common")
    return module is not None and isinstance(value, module.EnvBase)


class TorchRLHost:
    """An `EnvBase`, stepped as a whole; episodes begin by its partial resets.

    Args:
        env: the env.
        make: builds it anew; `None` for an instance of the user's.
    """

    def __init__(self, env: Any, make: Callable[[], Any] | None = None) -> None:
        self._make = make
        self._seed: int | None = None
        self._closed = False
        self._ended: list[int] = []
        self._begun: Leaves | None = None
        self._env = env
        self.spec = spec_of(lambda: self._env)
        self._groups = groups_of(self.spec.done)
        self._advance: Callable[[Any], tuple[Any, Any]]
        self._begin: Callable[[TensorDictBase, Sequence[int]], TensorDictBase]
        self._any_done: Callable[[TensorDictBase], bool]
        self._install(env)

    @property
    def env(self) -> Any:
        """The env."""
        return self._env

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env; the first seed is that of all, and the env deals it out."""
        try:
            if seeds is not None:
                self._set_seed([int(seed) for seed in seeds])
            return [self._env.reset()]
        except Exception as error:
            raise EnvRaised(0, error) from error

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:  # noqa: ARG002
        """Begin an episode in these envs, from the env's own random state."""
        if self._begun is not None:
            return self._begun
        try:
            return [self._begin(onto[0].copy(), envs)]
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
        following = made.get("next")
        ended = self._ends(following) if self._any_done(following) else []
        self._ended = [env for env, _, _ in ended]
        return Transition([root], reward_of(following, self.spec), ended)

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Not possible: an `EnvBase` steps as a whole."""
        raise RuntimeError(f"env {env} of {self._env} cannot be stepped alone (got {len(action)} leaves)")

    def rebuild(self) -> Leaves:
        """Close the env, build another and reset it."""
        if self._make is None:
            raise RuntimeError(f"{self._env} was given as an instance and cannot be built anew; pass a callable")
        close_broken(self.close)
        self._closed = False
        self._install(self._make())
        return self.reset_all()

    def retire(self, envs: Sequence[int]) -> None:
        """Nothing to do: rows of these envs are ignored by whoever retired them."""

    def render(self, env: int) -> Array | None:
        """A frame of a single env, if it renders arrays."""
        render = getattr(self._env, "render", None)
        frame = None if render is None or env or self.spec.num_envs > 1 else render()
        return frame if isinstance(frame, np.ndarray) else None

    def seed_of(self, env: int) -> int | None:  # noqa: ARG002  the env deals it out in its own way
        """The seed that was given to the env."""
        return self._seed

    def close(self) -> None:
        """Close the env; twice is fine."""
        if not self._closed:
            self._closed = True
            if not getattr(self._env, "is_closed", False):
                self._env.close()

    def env_state(self) -> Mapping[str, Any]:
        """The state of the transforms."""
        holder = self._state_holder()
        return OrderedDict() if holder is None else holder.state_dict()

    def load_env_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the transforms."""
        holder = self._state_holder()
        if holder is not None and state:
            holder.load_state_dict(state)

    def _install(self, env: Any) -> None:
        self._env = env
        short = short_way(env)
        if short is None:
            self._begin, self._any_done = self._begin_where_ended, any_done_of(self.spec.done)
        else:
            self._begin, self._any_done = short.reset, lambda _: short.any_ended
        self._step = without_searches(step_of(env) if short is None else short.step)
        self._advance = self._in_one if _has_own_way(env) else self._in_two

    def _in_two(self, td: Any) -> tuple[Any, Any]:
        self._step(td)
        return td, self._env.step_mdp(td)

    def _in_one(self, td: Any) -> tuple[Any, Any]:
        """For envs that have a way of their own to step and reset: what they begin with is kept for `reset`."""
        made, root = self._env.step_and_maybe_reset(td)
        self._begun = [root]
        return made, root

    def _begin_where_ended(self, root: TensorDictBase, envs: Sequence[int]) -> Any:
        if list(envs) == self._ended:
            return self._env.maybe_reset(root)
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

    def _ends(self, following: TensorDictBase) -> list[Ended]:
        """Episodes that ended: where any flag that counts is set."""
        n, flags = self.spec.num_envs, {}
        for kind in (_DONE, _TERMINATED, _TRUNCATED):
            found = [following.get(group[kind]).reshape(n, -1).any(1) for group in self._groups if kind in group]
            flags[kind] = torch.stack(found).any(0).tolist() if found else [False] * n
        over = zip(flags[_DONE], flags[_TERMINATED], flags[_TRUNCATED], strict=True)
        return [
            (env, terminated or not truncated, truncated)
            for env, (done, terminated, truncated) in enumerate(over)
            if done or terminated or truncated
        ]

    def _set_seed(self, seeds: Sequence[int]) -> None:
        same = len(seeds) > 1 and len(set(seeds)) == 1
        self._seed = seeds[0]
        self._env.set_seed(seeds[0], static_seed=same)

    def _state_holder(self) -> Any:
        envs = sys.modules["torchrl.envs"]
        if isinstance(self._env, envs.TransformedEnv):
            return self._env.transform
        batched = sys.modules["torchrl.envs.batched_envs"].BatchedEnvBase
        return self._env if isinstance(self._env, batched) else None


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


def groups_of(done: Sequence[Key]) -> list[dict[str, Key]]:
    """End flags by their group, as `{"done": key, "terminated": key, …}`."""
    groups: dict[tuple[str, ...], dict[str, Key]] = {}
    for key in done:
        *parents, name = as_tuple(key)
        groups.setdefault(tuple(parents), {})[name] = key
    return list(groups.values())


def any_done_of(done: Sequence[Key]) -> Callable[[TensorDictBase], bool]:
    """How to see at a glance whether any flag is set in a `"next"`; `"done"` says it for its group."""
    telling = [group.get(_DONE) for group in groups_of(done)]
    keys = list(done) if None in telling else telling
    if len(keys) == 1:
        return lambda following: bool(following.get(keys[0]).any())
    return lambda following: any(bool(following.get(key).any()) for key in keys)


def reward_of(following: TensorDictBase, spec: TensorDictSpec) -> Array:
    """Rewards `[B]`: the sum over all reward entries and their dimensions behind `*B`."""
    rewards: list[Array] = [entry.detach().cpu().numpy() for entry in entries_of(following, spec.rewarded)]
    if len(rewards) == 1 and rewards[0].size == spec.num_envs:
        return rewards[0].reshape(-1)
    total: Array = sum((reward.reshape(spec.num_envs, -1).sum(1) for reward in rewards), np.zeros(spec.num_envs))
    return total


def _has_own_way(env: Any) -> bool:
    base = sys.modules["torchrl.envs.common"].EnvBase
    batched = sys.modules["torchrl.envs.batched_envs"].BatchedEnvBase
    own = type(env).step_and_maybe_reset is not base.step_and_maybe_reset and not isinstance(env, batched)
    hooks = getattr_static(env, "_post_step_mdp_hooks", None)  # a transformed env passes on what it does not have
    return own or hooks is not None or any(env.__dict__.get(name) for name in _OWN_WAYS)


def _inside(inner: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _keys(keys: Sequence[Any]) -> tuple[Key, ...]:
    return tuple(as_key(as_tuple(key)) for key in keys)
