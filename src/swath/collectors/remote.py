"""What lives in a place: a worker that answers the requests of a collection.

collect(…) ─▶ hook ─▶ fragment ─▶ hook ─▶ Parcel(Head, arrays), or written to a replay buffer
another method ─▶ between two fragments
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from swath.collectors.messages import Description, FragmentRequest, Head, Tally, signature_of
from swath.collectors.paths import follow
from swath.collectors.responding import Responder
from swath.collectors.worker import Worker
from swath.collectors.worker_request import Seeding, WorkerRequest, thawed
from swath.errors import noted
from swath.rollout.buffer import TensorDictRows
from swath.rollout.episodes.statistics import life_of
from swath.rollout.fragment import Fragment
from swath.rollout.hosts.base import first_of
from swath.rollout.hosts.torchrl import CREATOR, creator_apart
from swath.weights.manifest import Manifest, plan
from swath.weights.snapshot import POLICY, Snapshot, fitting
from swath.workers.packing import Parcel, travels

WEIGHTS, TRAJ_POOL, LIFE = "policy_state_dict", "traj_pool", "life"
PARTS = ("env_state_dict", "frames", "iter", TRAJ_POOL, "policy_version", "seed", LIFE)
"""What a worker saves, beside weights."""

travels(*CREATOR, creator_apart)


class RemoteWorker(Worker, Responder):
    """One worker of a fleet, or the one in this process.

    Args:
        request: what it is made of.

    Attributes:
        hooks: called around fragments: before each, and with each as a batch `[*B, T]`.
    """

    def __init__(self, request: WorkerRequest) -> None:
        Responder.__init__(self, request)
        self._ask, self._number, self._interrupted = FragmentRequest(), 0, request.stopped
        self._bell: Any = None
        Worker.__init__(self, request)
        self._begin_writing(request, self.layout, self.hooks)

    def describe(self) -> Description:
        """What it is like; where nobody compares it with others, without its entries."""
        host, layout = self.host, self.layout
        return Description(
            host.spec.num_envs,
            self.n_steps,
            layout,
            Manifest.of(self.policy),
            {} if self._here else signature_of(self.zero_batch(), len(layout.batch_shape) + 1),
            getattr(first_of(host.env), "device", None),
            self.device,
        )

    def next(self) -> Any:
        """A batch for whoever holds this worker's handle; the collection does not see it."""
        return self._asked(FragmentRequest()).to_tensordict(self.layout)

    def stats(self) -> dict[str, Any]:
        """What it has done."""
        return {"life": self.life, "policy_version": self.version, **asdict(self.tally)}

    def stopped(self) -> bool:
        """Whether the fragment ends with this step: the collection, or the user's own interruptor, says so."""
        if self._bell is not None and self._bell[self._ask.entry] >= self._ask.number:
            return True
        return self._interrupted is not None and self._interrupted()

    @property
    def env(self) -> Any:
        """The live env, vector env, or list of envs."""
        return self.host.env

    def get_model(self, model_id: str) -> Any:
        """The model of an id: the policy, or what a path leads to."""
        return self.policy if model_id == POLICY else follow(self, model_id)

    def getattr_env(self, name: str) -> Any:
        """An attribute of the first env."""
        return follow(first_of(self.host.env), name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the policy."""
        return follow(self.policy, name)

    def touch(self) -> int:
        """The version of its weights."""
        return self.version

    def take(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""
        modules = {one: self.module if one == POLICY else self.get_model(one) for one in models}
        changes = [fitting(models[one], module) for one, module in modules.items() if module is not None]
        for change in changes:
            change()
        self.version = version

    def state_dict(self) -> OrderedDict[str, Any]:
        """Weights, transforms, counters, version, seed and life."""
        saved, stateful = OrderedDict[str, Any](), getattr(self.host, "stateful", None)
        if self.module is not None:
            saved[WEIGHTS] = OrderedDict(
                (name, value.detach().clone() if isinstance(value, torch.Tensor) else value)
                for name, value in self.module.state_dict().items()
            )
        saved["env_state_dict"] = OrderedDict() if stateful is None else stateful.state_dict()
        saved["frames"], saved["iter"] = self.tally.frames, self._number - 1
        saved[TRAJ_POOL] = {"traj_id": torch.tensor(self.next_id, dtype=torch.int64)}
        saved["policy_version"] = self.version
        saved["seed"] = None if self.seeding is None else self.seeding.root
        saved[LIFE] = self.life
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Go on from what was saved, in a new life, so that ids exceed all before.

        Raises:
            TypeError: no state dict.
            KeyError: parts are missing, unless `strict` is false.
            ValueError: weights, for a policy that has none; also only if `strict`. In all cases nothing has changed.
        """
        require_parts(state_dict, has_weights=self.module is not None, strict=strict)
        stateful, weights, changes = getattr(self.host, "stateful", None), state_dict.get(WEIGHTS), []
        if self.module is not None and weights is not None:
            modules = [self.policy] if self.acts is self.policy else [self.policy, self.acts]
            changes = [plan(module, weights) for module in modules]
        life = max(self.life, last_life_of(state_dict)) + 1
        version = int(state_dict.get("policy_version", self.version))
        for change in changes:
            change()
        self.version, seeding = version, self.seeding
        if stateful is not None and state_dict.get("env_state_dict"):
            stateful.load_state_dict(state_dict["env_state_dict"])
        if "seed" in state_dict:
            seed = state_dict["seed"]
            seeding = None if seed is None else replace(seeding or Seeding(seed), root=seed, static=False)
        self.begin_life(life, seeding)

    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None) -> None:
        """As `load_state_dict` without weights, which come by the channel; with these seeds, from this seed."""
        if seeding is not None:
            self.seeding = seeding
        self.load_state_dict(saved, strict=False)

    def _make(self, ask: FragmentRequest) -> Parcel:
        """The fragment's arrays, or its batch where entries may be anything or a hook sees them.

        The hook sees what is written where it is written from here: the last to see it.
        """
        if self.hooks.before is not None:
            with noted(f"pre_collect_hook in {self.who}"):
                self.hooks.before()
        if ask.frames and (n_steps := -(-ask.frames // self.host.spec.num_envs)) != self.n_steps:
            self.make_steps(n_steps)
        since, fragment = self.next_id, self._asked(ask)
        frames, made, episodes = fragment.frames, fragment.steps, self._ids.ended.tobytes()
        body, hook = fragment, self.hooks.after if self._writer is None else None
        if hook is not None or isinstance(fragment.rows, TensorDictRows):
            body = fragment.to_tensordict(self.layout)
        if hook is not None:
            try:
                with noted(f"post_collect_hook in {self.who}"):
                    hook(body)
            except BaseException:
                self.lose(frames)
                raise
        self.tally.frames += frames
        made = self.n_steps if made is None else made
        return Parcel(Head(self.life, self.version, frames, made, episodes, self.next_id, self._number, since), body)

    def _asked(self, ask: FragmentRequest) -> Fragment:
        self._ask, self._bell = ask, None if ask.bell is None else ask.bell.open()
        self._number += 1
        fragment = self.make_fragment(randomly=ask.randomly)
        if self.options.set_truncated:
            fragment.rows.cut_last()
        return fragment

    def counted(self) -> Tally:
        """Counts of this life, but for what it has written."""
        return replace(self.tally)


def build_remote(request: WorkerRequest) -> Responder:
    """The worker; the function that jobs name. What travelled frozen thaws here.

    Raises:
        ValueError: it is not like its earlier lives.
    """
    source = replace(request.source, env=thawed(request.source.env))
    make: Callable[[WorkerRequest], Responder] = request.make or RemoteWorker
    built = make(replace(request, source=source, policy=thawed(request.policy)))
    difference = "" if request.model is None else request.model.difference(built.describe())
    if difference:
        built.close()
        raise ValueError(f"worker {request.worker} was built anew and is not what it was: {difference}")
    return built


def last_life_of(saved: Mapping[str, Any]) -> int:
    """The life that was saved, or a later one in which an id was given."""
    pool = saved.get(TRAJ_POOL)
    return max(int(saved.get(LIFE, 0)), 0 if pool is None else life_of(int(pool["traj_id"]))[1])


def require_parts(saved: Any, *, has_weights: bool, strict: bool) -> None:
    """What a worker saves must be there, if `strict`, and nothing that does not fit it.

    Raises:
        TypeError: no state dict.
        KeyError: parts are missing.
        ValueError: weights, for a policy that has none.
    """
    if not isinstance(saved, Mapping):
        raise TypeError(f"the state dict is of type {type(saved).__name__}; give what state_dict() of a collector gave")
    missing = [part for part in (*PARTS, *[WEIGHTS] * has_weights) if strict and part not in saved]
    if missing:
        raise KeyError(f"the state dict lacks {missing}; pass strict=False to restore what is there")
    if strict and not has_weights and WEIGHTS in saved:
        raise ValueError("the state dict has weights, but this policy has none; pass strict=False to leave them out")
