"""Training with parameter servers, as in the papers: asynchronous or synchronous.

The parameter servers keep the model, divided evenly. Workers get chunks of the data, push gradients
after each mini-batch and pull parameters. A script only calls `run`:

    from shadowprice.training import servers

    recipe = servers.Recipe(
        model=Net, loss=loss, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        data=servers.read("s3://bucket/ratings"), epochs=10, minibatch=64,
    )
    outcome = servers.run(recipe)

Names are loaded at first use, because they need torch and fsspec.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shadowprice.training.servers.chunks import DataSet, read, write
    from shadowprice.training.servers.recipe import Recipe, Settings
    from shadowprice.training.servers.running import TrainingResult, run

_NAMES: Final = {
    "chunks": ("DataSet", "read", "write"),
    "recipe": ("Recipe", "Settings"),
    "running": ("TrainingResult", "run"),
}

__all__ = ["DataSet", "Recipe", "Settings", "TrainingResult", "read", "run", "write"]


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _NAMES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("fsspec") is None:
        raise ModuleNotFoundError(
            f"shadowprice.training.servers.{name} needs torch and fsspec: "
            "pip install './packages/training[torch]' in a clone of Shadowprice",
            name="torch",
        )
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
