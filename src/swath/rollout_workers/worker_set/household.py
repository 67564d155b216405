"""What was said of policies that holds for good, so that workers that come later, or were busy, can be told.

add, remove, mapping, training ─▶ Household, revision + 1 ─▶ settle(worker, want, have): only what is different
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Said:
    """One thing that was said.

    Attributes:
        revision: when; it tells apart what was said.
        what: it is; perhaps arrays, which have no one truth when they are compared.
    """

    revision: int
    what: Any = field(compare=False)


@dataclass(frozen=True)
class Household:
    """The policies of all workers of a set, as they differ from those they are built with.

    Attributes:
        revision: grows with every change.
        added: how policies are added, keywords of `add_policy` by policy id, in order.
        removed: policies that workers are built with and are to have no more.
        mapping: which policy acts for whom; None: as built.
        to_train: which policies learn; None: as built.
    """

    revision: int = 0
    added: Mapping[str, Said] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    mapping: Said | None = None
    to_train: Said | None = None

    def adding(self, policy_id: str, how: Mapping[str, Any]) -> Household:
        """With one policy more."""
        number = self.revision + 1
        return replace(self, revision=number, added={**self.added, policy_id: Said(number, how)})

    def removing(self, policy_id: str) -> Household:
        """Without this policy."""
        added = {each: said for each, said in self.added.items() if each != policy_id}
        return replace(self, revision=self.revision + 1, added=added, removed=self.removed | {policy_id})

    def mapping_by(self, function: Callable[..., str] | None) -> Household:
        """With this mapping; None changes nothing."""
        if function is None:
            return self
        number = self.revision + 1
        return replace(self, revision=number, mapping=Said(number, function))

    def training(self, policies: Any) -> Household:
        """With these policies learning; None changes nothing."""
        if policies is None:
            return self
        number = self.revision + 1
        return replace(self, revision=number, to_train=Said(number, policies))


AS_BUILT = Household()


def settle(worker: Any, want: Household, have: Household) -> None:
    """Bring a worker to what is wanted. If something raises, doing it again does the rest.

    Args:
        worker: a `RolloutWorker`.
        want: what is to be.
        have: to what it was brought before.
    """
    gone = [pid for pid, said in have.added.items() if want.added.get(pid) != said]
    for pid in dict.fromkeys([*gone, *sorted(want.removed - have.removed)]):
        if pid in worker.policy_map:
            worker.remove_policy(policy_id=pid)
    for pid, said in want.added.items():
        if have.added.get(pid) != said and pid not in worker.policy_map:
            worker.add_policy(pid, **said.what)
    if want.mapping is not None and want.mapping != have.mapping:
        worker.set_policy_mapping_fn(want.mapping.what)
    if want.to_train is not None and want.to_train != have.to_train:
        worker.set_is_policy_to_train(want.to_train.what)
