"""Values as a few bytes and many buffers, so that arrays cross borders without being copied into a pickle.

    value ─▶ pack ─▶ head: bytes (structure)            ─▶ unpack ─▶ value, its arrays views of the buffers
                     buffers: numpy arrays' own memory

    Outcome ─▶ reply_to ─▶ (raised, value), body: carried ─▶ outcome_of ─▶ the caller's Outcome

Tensors on the CPU travel as numpy arrays do; all that pickles in no other way goes through cloudpickle.
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
from swath.workers.hosting import attempted
from swath.workers.outcome import Error, Outcome, Value, frozen, thawed
from swath.workers.tickets import Received

PROTOCOL = 5

Apart: TypeAlias = Callable[[Any], tuple[Any, ...]]
"""Takes an object apart, as `__reduce__` does."""

_BY_NAME: dict[tuple[str, str], Apart] = {}
"""How objects of some classes travel, by module and name: nothing is imported for it."""


@dataclass(frozen=True)
class Parcel:
    """What a worker's method returns where most of it may stay behind until it is wanted.

    Attributes:
        head: small; arrives with the answer.
        body: may be large; fetched by `Received.open`.
    """

    head: Any
    body: Any


@dataclass(frozen=True)
class Packed:
    """A value taken apart.

    Attributes:
        head: its structure.
        buffers: the memory of its arrays, not copied.
    """

    head: bytes
    buffers: list[memoryview]

    @property
    def size(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def copies(self) -> list[bytearray]:
        """Of the buffers."""
        return [bytearray(buffer) for buffer in self.buffers]


def pack(value: Any) -> Packed:
    """Take a value apart; its arrays must not change until the buffers have been written somewhere."""
    return Pickler().pack(value)


def unpack(head: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """The value; its arrays are views of the buffers and as writable as these."""
    return pickle.loads(head, buffers=buffers)  # noqa: S301  our own workers wrote it


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles one value; tensors on the CPU as arrays."""

    def __init__(self) -> None:
        self._file = io.BytesIO()
        self._buffers: list[pickle.PickleBuffer] = []
        super().__init__(self._file, protocol=PROTOCOL, buffer_callback=self._buffers.append)

    def pack(self, value: Any) -> Packed:
        """See `pack`.

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
        """How arrays and tensors are taken apart; all else as cloudpickle does it."""
        kind = type(obj)
        if kind is np.ndarray:
            if obj.flags.forc or obj.dtype.hasobject:
                return obj.__reduce_ex__(PROTOCOL)  # at once: cloudpickle would look it up in tables first
            return _itself, (np.ascontiguousarray(obj),)  # else it would be copied into the head
        if kind is torch.Tensor and _plain(obj):
            return _tensor, _as_numpy(obj)
        apart = _BY_NAME.get((kind.__module__, kind.__name__))
        if apart is not None:
            return apart(obj)
        return super().reducer_override(obj)


def travels(module: str, name: str, apart: Apart) -> None:
    """From now on objects of this class, not of those derived from it, are taken apart so."""
    _BY_NAME[module, name] = apart


def _itself(array: Any) -> Any:
    return array


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.requires_grad


def _as_numpy(tensor: torch.Tensor) -> tuple[Any, torch.dtype | None]:
    """The tensor's array, and its dtype where numpy has no such."""
    tensor = tensor.contiguous().resolve_conj().resolve_neg()
    try:
        return tensor.numpy(), None
    except TypeError:
        shape = (*tensor.shape, tensor.element_size())
        return tensor.reshape(-1).view(torch.uint8).numpy().reshape(shape), tensor.dtype


def _tensor(array: Any, dtype: torch.dtype | None) -> torch.Tensor:
    if not array.flags.writeable:
        array = array.copy()  # torch has no read-only tensors
    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.view(dtype).reshape(array.shape[:-1])


def _mapped(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A tensor that lies in a file travels as its numbers: where it goes, that file may not be."""
    return _tensor, _as_numpy(tensor.as_subclass(torch.Tensor))


travels("tensordict.memmap", "MemoryMappedTensor", _mapped)


def owned(buffers: Sequence[Any]) -> list[Any]:
    """Copies of the buffers, writable and the receiver's own."""
    return [np.array(np.frombuffer(buffer, dtype=np.uint8)) for buffer in buffers]


# What a worker in a process of its own replies, whatever carries it


def reply_to(outcome: Outcome, carry: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What to reply; what cannot travel becomes an exception.

    Args:
        outcome: of the call.
        carry: makes a value ready to travel.

    Returns:
        Whether it raised and what, or what it returned, carried; the body of a parcel, carried by itself, or `None`.
    """
    made = outcome if isinstance(outcome, Error) else attempted(_carried, outcome.value, carry)
    return (carry((True, frozen(made.exception))), None) if isinstance(made, Error) else made.value


def outcome_of(head: Callable[[], Any], body: Callable[[], Any] | None) -> Outcome:
    """What became of the call.

    Args:
        head: loads the first part of the reply.
        body: loads the second, if there is one.
    """
    try:
        raised, value = head()
        if raised:
            return Error(thawed(value))
    except BaseException as error:  # noqa: BLE001  whatever users' classes do when they are rebuilt
        return Error(error)
    return Value(value if body is None else Received(value, body))


def begin_process(threads: int) -> None:
    """Threads as asked for, random states that no other worker has: new processes begin with the same."""
    torch.set_num_threads(threads)
    torch.seed()
    random.seed()
    np.random.seed()  # noqa: NPY002  users draw from it


def _carried(value: Any, carry: Callable[[Any], Any]) -> tuple[Any, Any]:
    if not isinstance(value, Parcel):
        return carry((False, value)), None
    body = carry(value.body)
    return carry((False, value.head)), body
