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

from typing import TYPE_CHECKING, Any, Final

from shadowprice.training.errors import import_at_first_use

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
    return import_at_first_use(__name__, _NAMES, name)
