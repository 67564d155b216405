"""What both plugins share: a run that could not do its work is refused."""

import importlib
import sys
from inspect import signature

import pytest

from peers import rllib_shim, torchrl_shim


@pytest.mark.parametrize(("plugin", "package"), [(rllib_shim, "ray"), (torchrl_shim, "torchrl")])
def test_without_the_peer_or_too_late_a_run_is_refused_with_the_way_out(plugin, package, monkeypatch):
    importlib.reload(plugin)
    with pytest.raises(pytest.UsageError, match=f"name it on the command line: pytest -p {plugin.__name__}"):
        plugin.pytest_configure()
    monkeypatch.setitem(sys.modules, package, None)
    begin = plugin.pytest_load_initial_conftests
    begin(**dict.fromkeys(signature(begin).parameters))
    with pytest.raises(pytest.UsageError, match=rf"install swath\[{package}\]"):
        plugin.pytest_configure()
