"""The host for envs that step as a batch: any gymnasium `VectorEnv`, EnvPool, ALE's vector env.

Vector envs begin the next episode by themselves in one of three ways, which have one meaning outside: `step` gives what
the step led to, `reset` the observation that the next episode begins with.

    DISABLED    nothing happens by itself: `reset` asks the env
    SAME_STEP   the env has already reset: the true last observation is in its info, `reset` gives what it kept
    NEXT_STEP   the env resets within its next step and ignores the action: that row is void

A `VecEnv` of Stable-Baselines3 is known by the module of its class: nothing of that is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from swath.rollout.hosts.base import ArrayHost, ArraySpec, Ends, EnvRaised, Infos, Make, Seeding, Transition
from swath.rollout.hosts.returned import bad_answer, first_info_of, flags_of, info_of, rewards_of
from swath.rollout.spaces import Array, Converter, Leaf, Leaves, action_leaves, joiner, observation_leaves, unpacker

Kind = Literal["gymnasium", "ale", "envpool", "other"]
_SEEDING: Mapping[Kind, Seeding] = {"gymnasium": "episode", "ale": "episode", "envpool": "none", "other": "layout"}

STEP = "a gymnasium vector env has step(actions) -> observations, rewards, terminations, truncations, infos"


class VectorHost(ArrayHost):
    """A vector env, stepped as a whole.

    Args:
        env: the vector env.
        make: builds another one like it, in a list.
        exact: observations keep the dtypes of their space, under any names.
        keep_float64: observations of float64 stay float64.

    Raises:
        ValueError: an async EnvPool or ALE env whose batch is not all of its envs; an env that does not say when it
            begins its next episode.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        make: Make | None = None,
        *,
        exact: bool = False,
        keep_float64: bool = False,
    ) -> None:
        super().__init__([env], make)
        mode, self._kind = mode_of(env), kind_of(env)
        n, seen, acted = env.num_envs, env.single_observation_space, env.single_action_space
        inner: Any = env.unwrapped
        size = inner.config["batch_size"] if self._kind == "envpool" else inner.batch_size if self._kind == "ale" else n
        if size != n:
            raise ValueError(f"{env} returns batches of {size} of its {n} envs; make them equal")
        self._same_step, self._by_hand = mode is AutoresetMode.SAME_STEP, mode is AutoresetMode.DISABLED
        observation = observation_leaves(seen, exact=exact, keep_float64=keep_float64)
        action = action_leaves(acted)
        resettable, skips = self._by_hand or self._kind != "other", mode is AutoresetMode.NEXT_STEP
        looks, seeding = (n, (n,), observation, action, seen, acted), _SEEDING[self._kind]
        self.spec = ArraySpec(*looks, resettable=resettable, alone=False, skips=skips, seeding=seeding)
        self._converters = [*map(Converter, observation)]
        self._unpack, self._join = unpacker(observation, self._converters, n), joiner(acted)
        # Envs that have begun their next episode with the last step, or that will within the next.
        self._begun: list[int] = []
        # What was observed after the last step, where envs reset within it.
        self._after: Leaves = []
        self._info: Infos = {}
        # What was said in the resets after the last step, by env.
        self._first_infos: dict[int, Infos] = {}

    @property
    def env(self) -> Any:
        """The vector env, or the `VecEnv`."""
        return getattr(self.envs[0], "vec_env", self.envs[0])

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env; an env that takes one seed for all gets the first."""
        self._begun, self._first_infos = [], {}
        leaves, self._info = self._ask(range(self.spec.num_envs), seeds)
        return leaves

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs, those that get a seed anew even if they have begun by themselves."""
        own, asked = self._begun, dict[int, int | None]()
        if seeds is not None or envs != own:
            given = dict(zip(envs, seeds or [None] * len(envs), strict=True))
            own = [env for env in own if env in given and given[env] is None]
            asked = {env: seed for env, seed in given.items() if env not in own}
        if self.spec.skips and not asked:
            return onto  # they begin within the next step
        fresh = [leaf.copy() for leaf in onto]
        if own and self._same_step:
            for leaf, rows in zip(fresh, self._after, strict=True):
                leaf[own] = rows[own]
            self._first_infos |= dict.fromkeys(own, self._info)
        if asked:
            leaves, info = self._ask([*asked], None if seeds is None else [*asked.values()])
            for leaf, rows in zip(fresh, leaves, strict=True):
                leaf[[*asked]] = rows[[*asked]]
            self._first_infos |= dict.fromkeys(asked, info)
            self._begun = [env for env in self._begun if env not in asked]
        return fresh

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Advance every env, also retired ones: a vector env only steps as a whole, and nobody asks for `only` one."""
        assert only is None
        n, joined = self.spec.num_envs, self._join(action)
        answer: Any = None
        try:
            answer = self.envs[0].step(joined)
            observation, paid, died, cut, info = answer
            reward = rewards_of(paid, n)
            terminated, truncated = flags_of("terminated", died, n), flags_of("truncated", cut, n)
            there = self._unpack(observation)
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            raised = error if answer is None else bad_answer(error, self.env, STEP)
            return Transition([], np.zeros(n), failed=[(env, raised) for env in range(n)])
        self._info, self._first_infos = info, {}
        ended, void = Ends.flagged(terminated, truncated), self._begun
        self._begun = [] if self._by_hand else ended.envs.tolist()
        if self._same_step and self._begun:
            self._after, there = there, [leaf.copy() for leaf in there]
            for leaf, convert, rows in zip(self.spec.observation, self._converters, there, strict=True):
                rows[ended.envs] = convert(_final(info, leaf, self._begun))
        return Transition(there, reward, ended, void if self.spec.skips else (), info=info)

    def render(self, env: int) -> Array | None:
        """A frame of this env, if the vector env renders `"rgb_array"`."""
        frames = self.envs[0].render() if self.envs[0].render_mode == "rgb_array" else None
        return None if frames is None or frames[env] is None else np.asarray(frames[env])

    def info_of(self, env: int) -> Mapping[str, Any]:
        """What this env said with its latest observation."""
        if self.spec.skips and env in self._begun:
            return {}  # its episode begins within the next step
        first = self._first_infos.get(env)
        return info_of(self._info, env) if first is None else first_info_of(first, env)

    def _ask(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> tuple[Leaves, Infos]:
        """Have the vector env reset these envs, in ascending order: leaves and infos, of which their rows count.

        Raises:
            EnvRaised: it raised, or returned something else.
        """
        n, reset, masked = self.spec.num_envs, self.envs[0].reset, dict[str, Any]()
        if seeds is not None and self.spec.seeding == "episode":
            self._seeds |= {env: seed for env, seed in zip(envs, seeds, strict=True) if seed is not None}
        if len(envs) < n and not self.spec.resettable:
            way_out = "use a vector env with autoreset mode DISABLED"
            raise EnvRaised(envs[0], RuntimeError(f"cannot reset envs {envs} alone; {way_out}"))
        try:
            if len(envs) < n:
                mask = np.zeros(n, dtype=np.bool_)
                mask[list(envs)] = True
                masked = {"options": {"reset_mask": mask}}
            if self._kind == "envpool":
                ids = np.array(envs, dtype=np.int32)
                batch, info = (_spread(part, ids, n) for part in reset(ids))
            else:
                batch, info = reset(seed=None if seeds is None else self._as_it_takes(seeds, envs), **masked)
            return self._unpack(batch), info
        except Exception as error:
            raise EnvRaised(envs[0], error) from error

    def _as_it_takes(self, seeds: Sequence[int | None], envs: Sequence[int]) -> Any:
        """Seeds as gymnasium takes them, one per env; as ALE does, one per env that is reset; elsewhere one for all."""
        if self._kind == "gymnasium":
            of = dict(zip(envs, seeds, strict=True))
            return [of.get(env) for env in range(self.spec.num_envs)]
        if self._kind == "ale":
            return np.array([-1 if seed is None else seed for seed in seeds])  # -1 for no seed
        return seeds[0]


def _final(info: Any, leaf: Leaf, envs: Sequence[int]) -> Array:
    """The true last observations of envs: gymnasium keeps an object per env, others stack as observations are."""
    own, theirs = "final_obs", "terminal_observation"  # of gymnasium's, and of a `VecEnv`
    value = info.get(own) if isinstance(info, dict) else [said.get(own, said.get(theirs)) for said in info]
    if value is None:
        raise KeyError("episodes ended without info['final_obs']; use autoreset mode DISABLED or NEXT_STEP")
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.dtype == np.object_):
        return np.array([reduce(getitem, leaf.path, value[env]) for env in envs])
    return np.asarray(reduce(getitem, leaf.path, value))[envs]


def kind_of(env: VectorEnv[Any, Any, Any]) -> Kind:
    """Whose this vector env is: they differ in how they are reset and seeded."""
    if is_envpool(env):
        return "envpool"
    if type(env.unwrapped).__module__.startswith("ale_py."):
        return "ale"
    return "gymnasium" if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv) else "other"


def mode_of(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """When this vector env begins its next episode. EnvPool does so within the next step, if it does not say else.

    Raises:
        ValueError: it does not say.
    """
    said = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if said is None and is_envpool(env):
        return AutoresetMode.NEXT_STEP
    if said not in {*AutoresetMode, *(mode.value for mode in AutoresetMode)}:
        raise ValueError(f"{env} says autoreset_mode={said!r} in its metadata; it must be one of {[*AutoresetMode]}")
    return AutoresetMode(said)


def is_vector_env(env: object) -> bool:
    """Whether this steps as a batch."""
    return isinstance(env, VectorEnv) or is_envpool(env)


def is_envpool(env: object) -> bool:
    """Whether this is an EnvPool, seen without importing it."""
    inner = env.unwrapped if isinstance(env, VectorEnv) else env
    return any(base.__module__.startswith("envpool.") for base in type(inner).__mro__)


def _spread(rows: Any, ids: Array, num_envs: int) -> Any:
    """Rows of some envs at their places among all."""
    if isinstance(rows, dict):
        return {name: _spread(part, ids, num_envs) for name, part in rows.items()}
    if not isinstance(rows, np.ndarray) or len(rows) != len(ids):
        return rows
    spread = np.zeros((num_envs, *rows.shape[1:]), dtype=rows.dtype)
    spread[ids] = rows
    return spread


class AsVectorEnv(VectorEnv[Any, Any, Any]):
    """A `VecEnv` with the interface of gymnasium's vector envs, in mode `SAME_STEP`. It takes one seed for all.

    `infos[i]["terminal_observation"]` is the last observation, `infos[i]["TimeLimit.truncated"]` says how it ended.

    Args:
        env: the `VecEnv`.
    """

    def __init__(self, env: Any) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.vec_env, self.num_envs, self.render_mode = env, env.num_envs, getattr(env, "render_mode", None)
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:  # noqa: ARG002  it takes none
        """Observations and infos of a reset of all envs."""
        if seed is not None:
            self.vec_env.seed(seed)
        return self.vec_env.reset(), [{}] * self.num_envs

    def step(self, actions: Any) -> Any:
        """As gymnasium's; the infos are a list."""
        observation, reward, done, infos = self.vec_env.step(actions)
        cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & done
        return observation, reward, done & ~cut, cut, infos

    def render(self) -> Any:
        """A frame of each env."""
        return self.vec_env.get_images()

    def close_extras(self) -> None:
        """Close it."""
        self.vec_env.close()


def is_from_stable_baselines(kind: type, *names: str) -> bool:
    """Whether a class is, or derives from, one of that package with one of these names."""
    theirs = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "stable_baselines3"]
    return any(base.__name__ in names for base in theirs)
