"""Matrix factorisation with parameter servers: generated ratings of items by users.

    python factorisation.py --epochs 8

Under a scheduler each worker and each parameter server of the job runs this script; by hand there
is one of each. Users and items have a few hidden traits each, and a rating is how well they match,
with noise. The model is tested on ratings that were held out.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from shadowprice import jobs
from shadowprice.training import servers

USERS, THINGS, TRAITS, RATINGS, NOISE = 400, 300, 6, 40_000, 0.3


def ratings(seed: int) -> dict[str, np.ndarray]:
    """Return users, items and ratings."""
    draw = np.random.default_rng(seed)
    users, things = draw.normal(size=(USERS, TRAITS)), draw.normal(size=(THINGS, TRAITS))
    who, what = draw.integers(USERS, size=RATINGS), draw.integers(THINGS, size=RATINGS)
    match = (users[who] * things[what]).sum(axis=1) / np.sqrt(TRAITS)
    return {
        "who": who,
        "what": what,
        "rating": (match + draw.normal(0.0, NOISE, RATINGS)).astype(np.float32),
    }


class Factors(torch.nn.Module):
    """Traits of users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(USERS, TRAITS)
        self.things = torch.nn.Embedding(THINGS, TRAITS)
        for part in (self.users, self.things):
            torch.nn.init.normal_(part.weight, 0.0, 0.3)

    def forward(self, who: torch.Tensor, what: torch.Tensor) -> torch.Tensor:
        """Return how well they match."""
        return (self.users(who) * self.things(what)).sum(dim=1)


def loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean squared error."""
    return torch.nn.functional.mse_loss(model(batch["who"], batch["what"]), batch["rating"])


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="ratings", help="where the ratings are, or are written")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--minibatch", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--in-step", action="store_true", help="synchronously")
    parser.add_argument("--staleness", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)

    job = jobs.current()
    everything = ratings(chosen.seed)
    kept = RATINGS * 9 // 10
    if job.leads and not Path(chosen.data, "index.json").exists():
        known = {name: array[:kept] for name, array in everything.items()}
        servers.write(chosen.data, known, 2_000)
    while not Path(chosen.data, "index.json").exists():
        time.sleep(0.1)

    recipe = servers.Recipe(
        model=Factors,
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=chosen.rate),
        data=servers.read(chosen.data),
        epochs=chosen.epochs,
        minibatch=chosen.minibatch,
        seed=chosen.seed,
    )
    settings = servers.Settings(
        synchronous=chosen.in_step, staleness=chosen.staleness, keep=18, save_every=60.0
    )
    outcome = servers.run(recipe, settings)
    if outcome is None:  # a parameter server
        return
    held = {name: torch.from_numpy(array[kept:]) for name, array in everything.items()}
    with torch.no_grad():
        error = float(loss(outcome.model, held)) ** 0.5
    print(
        f"done: {outcome.minibatches} mini-batches; error {error:.3f} on ratings held out "
        f"(noise {NOISE}, spread {float(held['rating'].std()):.3f})",
        flush=True,
    )
    for name, value in outcome.measured.items():
        print(f"  {name:18} {value:,.6g}", flush=True)


if __name__ == "__main__":
    main()
