"""What TorchRL has and we have under no name of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swath.collectors.multi import LocalMultiCollector, MultiAsyncCollector, MultiCollector


class AsyncCollector(MultiAsyncCollector):
    """One worker in a process of its own; `Collector(…, backend="process")` is the same.

    Args:
        create_env_fn: a single env source.
        policy: as for any collector.
        create_env_kwargs: keywords for the source.
        **keywords: of `MultiAsyncCollector`.
    """

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *,
        create_env_kwargs: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__([create_env_fn], policy, create_env_kwargs=create_env_kwargs, **keywords)


class _Callable(type):
    """Builds what the function `swath.MultiCollector` builds, and knows their classes: TorchRL's tests do both."""

    def __call__(cls, *args: Any, **keywords: Any) -> LocalMultiCollector:
        return MultiCollector(*args, **keywords)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, LocalMultiCollector)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, LocalMultiCollector)


class MultiCollectorClass(metaclass=_Callable):
    """`MultiCollector` as a class."""
