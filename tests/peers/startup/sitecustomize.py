"""Puts a plugin's names in place in a child process of a test run; Python imports this file when it starts.

parent: PYTHONPATH has this folder ──▶ child starts ──▶ child imports the package ──▶ the plugin's `apply()`
"""

import os
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec


class AfterImport(MetaPathFinder):
    """Calls `apply()` of a plugin as soon as a package has been imported."""

    def __init__(self, package, plugin):
        self.package, self.plugin = package, plugin

    def find_spec(self, fullname, path=None, target=None):
        """Extend the loader of the package; leave all other modules to the finders that follow."""
        if fullname != self.package:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        execute = spec.loader.exec_module

        def execute_and_apply(module):
            execute(module)
            import_module(self.plugin).apply()

        spec.loader.exec_module = execute_and_apply
        return spec


if "SWATH_PEERS" in os.environ:
    sys.meta_path.insert(0, AfterImport(*os.environ["SWATH_PEERS"].split("=")))
