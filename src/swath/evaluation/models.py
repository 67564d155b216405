"""Models of a setting that take weights, by id: the policy, and parts of the env, on every copy of it.

"policy"                                    the private policy
"env.transform[0]"                          attributes and indices, from each env copy
"env.obs_rms", "env.return_rms"             the first name is looked up through gymnasium's wrappers
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from swath.evaluation.layers import below, transform_paths
from swath.evaluation.setting import Setting, module_of
from swath.weights.manifest import Manifest
from swath.weights.snapshot import POLICY, Snapshot, fitting, owner

_ENV = "env"
_STEP = re.compile(r"\.?(?P<name>[A-Za-z_]\w*)|\[(?P<index>-?\d+)\]")
_KNOWN = ("obs_rms", "return_rms", "ret_rms")


class Models:
    """Finds models by their ids, and puts weights into them.

    Args:
        setting: whose models.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._sent: dict[str, Snapshot] = {}

    def manifest(self, model_id: str) -> Manifest:
        """What weights a model wants.

        Raises:
            KeyError: there is no such model.
        """
        return Manifest.of(self._found(model_id)[0])

    def state(self, model_id: str) -> Any:
        """The state of a model, as its first copy has it.

        Raises:
            TypeError: it has none.
        """
        model = self._found(model_id)[0]
        if not hasattr(model, "state_dict"):
            raise TypeError(f"the model {model_id!r}, {type(model).__name__}, has no weights to keep")
        return model.state_dict()

    def check(self, model_id: str, extras: Mapping[str, Any]) -> None:
        """Check extra state before it is sent, as far as it is made of tensors.

        Raises:
            KeyError: other names.
            ValueError: other shapes.
        """
        for target in self._found(model_id):
            for name, extra in extras.items():
                _require_like(model_id, target.get_submodule(owner(name)).get_extra_state(), extra)

    def apply(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Put newer weights in: into all models and copies, or into none.

        Raises:
            KeyError, ValueError: they do not fit.
        """
        self._put(snapshots)
        mine = {model_id: snapshot for model_id, snapshot in snapshots.items() if model_id != POLICY}
        self._sent.update(copy.deepcopy(mine))

    def apply_again(self) -> None:
        """Envs were built anew: they get what those before them had been sent."""
        self._put(self._sent)

    def _put(self, snapshots: Mapping[str, Snapshot]) -> None:
        changes: list[Callable[[], None]] = []
        for model_id, snapshot in snapshots.items():
            for target in self._found(model_id):
                changes.extend(_change(target, snapshot))
        for change in changes:
            change()

    def _found(self, model_id: str) -> list[Any]:
        """The model, once per env copy if it is part of the env.

        Raises:
            KeyError: there is none.
        """
        if model_id == POLICY:
            policy = self._setting.policy
            return [module_of(policy) or policy]
        root, _, path = model_id.partition(".")
        found = list(_at(self._setting.host.env, path)) if root == _ENV and path else []
        if not found or not all(isinstance(each, nn.Module) for each in found):
            raise KeyError(f"there is no model {model_id!r} that takes weights; there are {self._ids()}")
        return found

    def _ids(self) -> list[str]:
        env = self._setting.host.env
        first = env[0] if isinstance(env, list) else env
        paths = [*(name for name in _KNOWN if list(_at(first, name))), *transform_paths(first)]
        return [POLICY, *(f"{_ENV}.{path}" for path in paths)]


def _change(target: Any, snapshot: Snapshot) -> Iterator[Callable[[], None]]:
    """What puts a snapshot into a model; checked already."""
    yield fitting(snapshot, target)
    if isinstance(target, Moments):
        yield target.put_back


def _at(env: Any, path: str) -> Iterator[Any]:
    """What a path leads to, from each copy of the env; nothing where it leads nowhere."""
    steps = _steps(path)
    if not steps:
        return
    for holder in _holders(env, str(steps[0])):
        try:
            found = _followed(holder, steps)
        except (AttributeError, LookupError, TypeError):
            continue
        yield Moments(found) if has_moments(found) else found


def _followed(holder: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        holder = holder[step] if isinstance(step, int) else getattr(holder, step)
    return holder


def _steps(path: str) -> list[str | int]:
    """A path in single steps: names and indices; empty if it is none."""
    steps: list[str | int] = []
    place = 0
    while place < len(path):
        match = _STEP.match(path, place)
        if match is None:
            return []
        steps.append(match["name"] or int(match["index"]))
        place = match.end()
    return steps


def _holders(env: Any, name: str) -> Iterator[Any]:
    """What has an attribute of this name: the outermost layer of each env copy that has it."""
    if isinstance(env, list | tuple):
        for each in env:
            yield from _holders(each, name)
    elif name in dir(env):
        yield env
    else:
        yield from _holders(below(env), name)


def _require_like(model_id: str, mine: Any, theirs: Any) -> None:
    """Extra state that is a dict of tensors must have the names and shapes of what is there already."""
    if not (isinstance(mine, Mapping) and mine):
        return
    names = set(theirs) if isinstance(theirs, Mapping) else set()
    if names != set(mine):
        raise KeyError(f"statistics for {model_id!r} have the entries {sorted(names)}, it has {sorted(mine)}")
    for name, value in mine.items():
        wanted, got = _shape(value), _shape(theirs[name])
        if wanted != got:
            raise ValueError(f"{name} for {model_id!r} has shape {got}, it has {wanted}; nothing was changed")


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


# Running statistics that are no module but an object with `mean`, `var` and `count`

NAMES = ("mean", "var", "count")


def has_moments(value: Any) -> bool:
    """Whether this is an object, or a mapping of three, with mean, variance and count."""
    if isinstance(value, Mapping):
        return set(value.keys()) == set(NAMES)
    return not isinstance(value, nn.Module | torch.Tensor) and all(hasattr(value, name) for name in NAMES)


def moments_of(value: Any) -> dict[str, torch.Tensor]:
    """Mean, variance and count as tensors of their own, in float64."""
    get = value.__getitem__ if isinstance(value, Mapping) else lambda name: getattr(value, name)
    return {name: _tensor(get(name)) for name in NAMES}


class Moments(nn.Module):
    """A copy of such an object's statistics that weights can be put into, and from there into the object.

    Args:
        holder: the object.
    """

    def __init__(self, holder: Any) -> None:
        super().__init__()
        self._holder = holder
        for name, value in moments_of(holder).items():
            self.register_buffer(name, value)

    def put_back(self) -> None:
        """The object has what is here, in its own types."""
        for name in NAMES:
            value, before = getattr(self, name), getattr(self._holder, name)
            setattr(self._holder, name, _as_before(value, before))


def _tensor(value: Any) -> torch.Tensor:
    held = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
    return torch.from_numpy(np.array(held, dtype=np.float64))


def _as_before(value: torch.Tensor, before: Any) -> Any:
    if isinstance(before, np.ndarray):
        return value.numpy().astype(before.dtype).copy()
    if isinstance(before, torch.Tensor):
        return value.to(before.dtype).to(before.device)
    return type(before)(value.item())
