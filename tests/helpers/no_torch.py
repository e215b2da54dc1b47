"""A plugin of pytest: torch and transformers are not there, for the tests and for what they fork.

``pytest -p tests.helpers.no_torch`` holds the planner, the index and the records to what the README
says of them. A program that a test starts finds what is installed: `absent.without` hides that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from typing import Any

NAMES = frozenset({"torch", "torchvision", "transformers"})


class _Hiding(PathFinder):
    """Finds modules and versions on `sys.path`, but those of `NAMES`."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in NAMES:
            return None
        return super().find_spec(fullname, path, target)

    @classmethod
    def find_distributions(cls, context: Any = None) -> Iterable[Distribution]:
        if context is not None and context.name in NAMES:
            return ()
        return super().find_distributions(context or DistributionFinder.Context())


loaded = sorted(NAMES & sys.modules.keys())
if loaded:
    raise ImportError(f"{loaded} are imported already: name this plugin on the command line")
sys.meta_path[sys.meta_path.index(PathFinder)] = _Hiding
