"""Handles on a replay buffer that lives in an actor of a Ray cluster."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from swath.collectors.checks import whole_number
from swath.options import count
from swath.workers.ray.held import ITSELF, Reach

CPU = torch.device("cpu")
LIFECYCLE = ("start", "close", "shutdown")


class RayReplayBufferClient:
    """Reaches a replay buffer in its actor, and cannot end it. Travels to other processes; any thread may use it.

    Has every public method of the buffer that is held, `len`, indexing and iteration, each call or item being one
    blocking round trip of at most 60 s.

    Args:
        reach: to the buffer.
        methods: names of its public methods, as far as they are known.
        on_cpu: whether tensors on other devices are moved to the CPU before they travel.

    Raises:
        WorkerLost: in every call, when the actor is gone, with what it held.
        WorkerLate: in every call, when there is no answer in time.
        Exception: what the buffer raised, as its own type.
    """

    def __init__(self, reach: Reach, methods: frozenset[str], *, on_cpu: bool = True) -> None:
        self._reach = reach
        self._methods = methods
        self._on_cpu = on_cpu
        self._over: list[int] = []

    def client(self) -> RayReplayBufferClient:
        """Another handle on the same buffer, without `start`, `close` and `shutdown`."""
        return RayReplayBufferClient(self._reach, self._methods, on_cpu=self._on_cpu)

    def clients(self, n: int) -> list[RayReplayBufferClient]:
        """So many handles.

        Raises:
            TypeError: no int.
            ValueError: below 1.
        """
        return [self.client() for _ in range(count("n", whole_number("n", n)))]

    @property
    def batch_size(self) -> int | None:
        """How many rows `sample` gives by default."""
        size: int | None = self._value("batch_size")
        return size

    @property
    def write_count(self) -> int:
        """How many rows were ever written."""
        written: int = self._value("write_count")
        return written

    @property
    def dim_extend(self) -> int:
        """The dimension along which `extend` adds rows."""
        dim: int = self._value("dim_extend")
        return dim

    @dim_extend.setter
    def dim_extend(self, value: int) -> None:
        self._ask("dim_extend", setattr, "dim_extend", value)

    @property
    def service_backend(self) -> str:
        """Where the buffer lives: `"ray"`."""
        return "ray"

    @property
    def transport_kind(self) -> str:
        """How data travel: `"ray"`."""
        return "ray"

    def __len__(self) -> int:
        length: int = self._ask("len()", len)
        return length

    def __getitem__(self, index: Any) -> Any:
        return self._ask("indexing", _item, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._ask("indexing", operator.setitem, index, value)

    def __iter__(self) -> Iterator[Any]:
        self._require_open()
        over, self._over = self._over, []
        number = self._reach.ask("iteration", "iterate", over)
        try:
            while item := self._reach.ask("iteration", "advance", number):
                yield item[0]
        finally:
            self._over.append(number)  # told with the next iteration: this may run wherever garbage is collected

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in LIFECYCLE:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        if name in self._methods:
            return partial(self._call, name)
        return self._value(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._methods})

    def __repr__(self) -> str:
        """A status line; asks nobody."""
        return f"<{type(self).__name__} of {self._reach.what}>"

    def _call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._ask(f"{method}()", partial(_called, method), args, kwargs)

    def _value(self, name: str) -> Any:
        """An attribute; a method that was not known is called when it is called."""
        is_method, value = self._ask(name, _attribute, name)
        return partial(self._call, name) if is_method else value

    def _ask(self, said: str, function: Callable[..., Any], *args: Any) -> Any:
        self._require_open()
        if self._on_cpu:
            args = _on_cpu(args)
        value = self._reach.apply(said, function, *args)
        return self if isinstance(value, str) and value == ITSELF else value

    def _require_open(self) -> None:
        """A handle cannot be closed."""


def _called(method: str, held: Any, args: Any, kwargs: Any) -> Any:
    return _in_memory(getattr(held, method)(*args, **kwargs))


def _item(held: Any, index: Any) -> Any:
    return _in_memory(held[index])


def _in_memory(value: Any) -> Any:
    """Rows that a storage keeps in files leave as rows."""
    return value.clone() if isinstance(value, TensorDictBase) and value.is_memmap() else value


def _attribute(held: Any, name: str) -> tuple[bool, Any]:
    """Whether it is a method, and its value if it is none."""
    value = getattr(held, name)
    return (True, None) if callable(value) else (False, value)


def _on_cpu(value: Any) -> Any:
    """Arguments with tensors where an actor without a GPU can read them."""
    if isinstance(value, torch.Tensor | TensorDictBase):
        return value.to(CPU) if _is_elsewhere(value) else value
    if type(value) in (tuple, list):
        return type(value)(map(_on_cpu, value))
    if type(value) is dict:
        return {key: _on_cpu(one) for key, one in value.items()}
    return value


def _is_elsewhere(value: Any) -> bool:
    """Whether a tensor in it is not on the CPU."""
    if isinstance(value, LazyStackedTensorDict):
        return any(map(_is_elsewhere, value.tensordicts))
    if isinstance(value, TensorDictBase):
        return any(map(_is_elsewhere, value.values()))
    return isinstance(value, torch.Tensor) and value.device != CPU
