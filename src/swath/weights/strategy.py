"""In which form weights are handed to users: as a TensorDict, or as a `state_dict`."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

from tensordict import TensorDict

from swath.options import one_of
from swath.weights.manifest import plan
from swath.weights.snapshot import EXTRA_STATE, Flat, Snapshot, flat_weights, is_extra, owner, renew

Form = Literal["tensordict", "state_dict"]


class WeightStrategy:
    """How weights are taken out of a model and put into one.

    Args:
        extract_as: `"tensordict"` for nested TensorDicts, `"state_dict"` for a dict with dotted names.

    Raises:
        ValueError: another form.
    """

    def __init__(self, extract_as: Form = "tensordict") -> None:
        one_of("strategy", extract_as, Form)
        self.extract_as = extract_as

    def extract_weights(self, source: Any) -> Any:
        """The weights themselves, not copies, without gradients.

        Extra state of a module is under `"__extra_state__"` beside its weights, as non-tensor data; in a `state_dict`
        it has the name that torch gives it.

        Args:
            source: a module, a TensorDict, or a dict, nested or dotted.

        Raises:
            TypeError: anything else.
        """
        return self._formed(flat_weights(source))

    def copied(self, snapshot: Snapshot) -> Any:
        """The weights of a snapshot in this form, copies."""
        tensors = {name: tensor.clone() for name, tensor in snapshot.tensors().items()}
        return self._formed({**tensors, **snapshot.extras})

    def apply_weights(self, destination: Any, weights: Any, inplace: bool = True) -> None:
        """Copy weights into a model, all or nothing.

        Args:
            destination: a module, a TensorDict, or a dict, nested or dotted.
            weights: a module, a TensorDict, or a dict; names as in `update_policy_weights_`.
            inplace: whether the tensors there get the values; false puts new tensors in their place. A module's
                parameters stay parameters.

        Raises:
            TypeError: not weights.
            KeyError: a parameter is missing or a name unknown.
            ValueError: another shape, or a dtype that is not cast.
        """
        if not inplace:
            renew(destination)
        plan(destination, weights)()

    def __repr__(self) -> str:
        """As it is built."""
        return f"WeightStrategy(extract_as={self.extract_as!r})"

    def _formed(self, flat: Flat) -> Any:
        if self.extract_as == "state_dict":
            return OrderedDict(flat)
        nested = TensorDict({})
        for name, value in flat.items():
            if is_extra(name):
                nested.set_non_tensor((*filter(None, owner(name).split(".")), EXTRA_STATE), value)
            else:
                nested.set(tuple(name.split(".")), value)
        return nested
