"""Values as a few bytes and many buffers, so that arrays cross borders without being copied into a pickle.

    value ─▶ pack ─▶ head: bytes (structure)            ─▶ unpack ─▶ value, its arrays views of the buffers
                     buffers: numpy arrays' own memory

    Outcome ─▶ pack_reply ─▶ head, body of a parcel ─▶ unpack_reply ─▶ the caller's Outcome

Tensors on the CPU travel as numpy arrays; objects without another way to be pickled go through cloudpickle.
"""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import cloudpickle
import numpy as np
import torch

from swath.errors import SwathError
from swath.pickles import reason
from swath.workers.hosting import run_and_capture
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.tickets import Received

PROTOCOL = 5

Reducer: TypeAlias = Callable[[Any], tuple[Any, ...]]
"""Takes an object apart, as `__reduce__` does."""

_REDUCERS: dict[tuple[str, str], Reducer] = {}
"""Reducers by the module and name of a class, which need not be imported for that."""


@dataclass(frozen=True)
class Parcel:
    """A return value of a worker's method, whose body stays with the worker until it is fetched.

    Attributes:
        head: small; arrives with the answer.
        body: may be large; fetched by `Received.open`.
    """

    head: Any
    body: Any


@dataclass(frozen=True)
class Packed:
    """A value as a pickle and separate buffers.

    Attributes:
        head: its structure.
        buffers: the memory of its arrays, not copied.
    """

    head: bytes
    buffers: list[memoryview]

    @property
    def size(self) -> int:
        """Return the number of bytes in all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def copy_buffers(self) -> list[bytearray]:
        """Return copies of the buffers."""
        return [bytearray(buffer) for buffer in self.buffers]


def pack(value: Any) -> Packed:
    """Take a value apart; its arrays must not change until the buffers have been written somewhere."""
    return Pickler().pack(value)


def unpack(head: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """Return the value; its arrays are views of the buffers, and writable if the buffers are."""
    return pickle.loads(head, buffers=buffers)  # noqa: S301  our own workers wrote it


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles one value; tensors on the CPU as arrays."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._buffers: list[pickle.PickleBuffer] = []
        super().__init__(self._file, protocol=PROTOCOL, buffer_callback=self._buffers.append)

    def pack(self, value: Any) -> Packed:
        """Take a value apart; see `pack`.

        Raises:
            TypeError: a part of the value cannot be pickled; the message names it.
        """
        try:
            self.dump(value)
        except SwathError:
            raise
        except Exception as error:
            raise TypeError(reason(error, value)) from error
        return Packed(self._file.getvalue(), [buffer.raw() for buffer in self._buffers])

    def reducer_override(self, obj: Any) -> Any:
        """Take arrays and tensors apart; leave other objects to cloudpickle."""
        kind = type(obj)
        if kind is np.ndarray:
            if obj.flags.forc or obj.dtype.hasobject:
                return obj.__reduce_ex__(PROTOCOL)  # at once: cloudpickle would look it up in tables first
            return np.asarray, (np.ascontiguousarray(obj),)  # other arrays would be copied into the head
        if kind is torch.Tensor and _is_plain(obj):
            return _rebuild_tensor, _as_numpy(obj)
        reducer = _REDUCERS.get((kind.__module__, kind.__name__))
        return super().reducer_override(obj) if reducer is None else reducer(obj)


def register_reducer(module: str, name: str, reducer: Reducer) -> None:
    """Pickle objects of this class, but not of its subclasses, by the reducer."""
    _REDUCERS[module, name] = reducer


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.requires_grad


def _as_numpy(tensor: torch.Tensor) -> tuple[Any, torch.dtype | None]:
    """Return the tensor as an array, and its dtype if numpy lacks that."""
    tensor = tensor.contiguous().resolve_conj().resolve_neg()
    try:
        return tensor.numpy(), None
    except TypeError:
        shape = (*tensor.shape, tensor.element_size())
        return tensor.reshape(-1).view(torch.uint8).numpy().reshape(shape), tensor.dtype


def _rebuild_tensor(array: Any, dtype: torch.dtype | None) -> torch.Tensor:
    if not array.flags.writeable:
        array = array.copy()  # torch has no read-only tensors
    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.view(dtype).reshape(array.shape[:-1])


def _reduce_mapped(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Send the numbers of a tensor in a file: the receiver may not have the file."""
    return _rebuild_tensor, _as_numpy(tensor.as_subclass(torch.Tensor))


register_reducer("tensordict.memmap", "MemoryMappedTensor", _reduce_mapped)


def writable_copies(buffers: Sequence[Any]) -> list[Any]:
    """Copy the buffers into writable arrays of bytes."""
    return [np.array(np.frombuffer(buffer, dtype=np.uint8)) for buffer in buffers]


# Replies of workers in other processes


def pack_reply(outcome: Outcome, pack_value: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Pack the outcome of a call; a value that cannot be sent becomes a failure.

    Args:
        outcome: a value or a failure.
        pack_value: packs one value.

    Returns:
        The packed value or failure; the packed body of a parcel, or `None`.
    """
    if isinstance(outcome, Value):
        outcome = run_and_capture(_pack_parts, outcome.value, pack_value)
    return (pack_value(outcome), None) if isinstance(outcome, Error) else outcome.value


def unpack_reply(head: Callable[[], Any], body: Callable[[], Any] | None) -> Outcome:
    """Return the outcome of a call.

    Args:
        head: loads the first part of the reply.
        body: loads the second, if there is one.
    """
    try:
        value = head()
    except BaseException as error:  # noqa: BLE001  users' classes may raise anything when they are rebuilt
        return Error(error)
    if isinstance(value, Error):
        return value
    return Value(value if body is None else Received(value, body))


def initialize_process(threads: int) -> None:
    """Limit torch's threads and reseed all generators: new processes begin with the same random states."""
    torch.set_num_threads(threads)
    torch.seed()
    random.seed()
    np.random.seed()  # noqa: NPY002  users draw from it


def _pack_parts(value: Any, pack_value: Callable[[Any], Any]) -> tuple[Any, Any]:
    if not isinstance(value, Parcel):
        return pack_value(value), None
    body = pack_value(value.body)
    return pack_value(value.head), body
