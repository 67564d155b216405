"""Shows in the reference the arguments of methods that take an options value (`swath.nearest.with_options`).

Positional arguments come first, then the others in the order of the docstring.
"""

import ast
import inspect
import re
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
ARGUMENT = re.compile(r"^ {4}(\w+): ", re.MULTILINE)


class Signatures(griffe.Extension):
    """Reads these signatures from the functions themselves; all else comes from the source."""

    def __init__(self) -> None:
        super().__init__()
        self._functions: list[griffe.Function] = []

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Note a decorated method."""
        if any("with_options" in str(decorator.value) for decorator in func.decorators):
            self._functions.append(func)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replace the parameters of the decorated methods."""
        for func in self._functions:
            owner, _, name = func.path.removeprefix(f"{func.module.path}.").rpartition(".")
            cls = attrgetter(owner)(import_module(func.module.path))
            method = getattr(cls, name)
            described = ARGUMENT.findall(inspect.getdoc(cls if name == "__init__" else method) or "")
            order = {argument: number for number, argument in enumerate(described)}
            parameters = sorted(
                inspect.signature(method).parameters.values(),
                key=lambda parameter: (
                    parameter.kind,
                    order.get(parameter.name, len(order)) if parameter.kind is inspect.Parameter.KEYWORD_ONLY else 0,
                ),
            )
            module = pkg.modules_collection[inspect.unwrap(method).__globals__["__name__"]]
            func.parameters = griffe.Parameters(*(_parameter(parameter, module) for parameter in parameters))


def _parameter(parameter: inspect.Parameter, module: griffe.Module) -> griffe.Parameter:
    """Return the parameter with an annotation whose names are looked up in this module."""
    annotation, default = None, None
    if parameter.annotation is not inspect.Parameter.empty:
        expression = ast.parse(str(parameter.annotation), mode="eval").body
        annotation = griffe.safe_get_annotation(expression, parent=module, log_level=None)
    if parameter.default is not inspect.Parameter.empty:
        default = repr(str(parameter.default)) if isinstance(parameter.default, Enum) else repr(parameter.default)
        default = "..." if default.startswith("<") else default
    return griffe.Parameter(parameter.name, annotation=annotation, kind=KINDS[parameter.kind], default=default)
