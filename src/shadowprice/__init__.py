"""Price-based scheduling of machine-learning training jobs on shared clusters.

`simulate`, `compare`, `whatif` and `open_run` are the main functions. They are imported at first
use, so that ``import shadowprice`` is fast.
"""

from contextlib import suppress
from pkgutil import extend_path

# The distribution shadowprice-training adds the subpackages `jobs` and `training`, possibly from
# another directory. The search fails in a working directory that was removed.
with suppress(FileNotFoundError):
    __path__ = extend_path(__path__, __name__)

__version__ = "0.1.0"

__all__ = ["Comparison", "Result", "WhatIf", "compare", "open_run", "simulate", "whatif"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # `import shadowprice` has to be fast

    return getattr(importlib.import_module("shadowprice.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
