"""Shows in the reference the arguments of methods that take an options value (`swath.nearest.with_options`)."""

import inspect
from enum import Enum
from importlib import import_module
from operator import attrgetter
from typing import Any

import griffe

KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


class Signatures(griffe.Extension):
    """Reads these signatures from the functions themselves; all else comes from the source."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace the parameters of a decorated method."""
        if not any("with_options" in str(decorator.value) for decorator in func.decorators):
            return
        module = import_module(func.module.path)
        method = attrgetter(func.path.removeprefix(f"{func.module.path}."))(module)
        func.parameters = griffe.Parameters(*map(self._parameter, inspect.signature(method).parameters.values()))

    @staticmethod
    def _parameter(one: inspect.Parameter) -> griffe.Parameter:
        default = repr(one.default)
        if isinstance(one.default, Enum):
            default = str(one.default)
        elif default.startswith("<"):
            default = "..."
        return griffe.Parameter(
            one.name,
            annotation=str(one.annotation) if one.annotation is not inspect.Parameter.empty else None,
            kind=KINDS[one.kind],
            default=None if one.default is inspect.Parameter.empty else default,
        )
