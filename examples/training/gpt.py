"""A small GPT that learns to write this project's documentation, letter by letter.

    python gpt.py --steps 300

Dropout inside attention, AdamW, warm-up and cosine decay; the curve is the same on any number of
workers.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from shadowprice import training

DOCS = Path(__file__).resolve().parents[2] / "docs"


class Text(Dataset[Any]):
    """Pieces of the documentation, each a sample, and the letters that follow."""

    def __init__(self, length: int) -> None:
        pages = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]
        raw = "".join(pages).encode("ascii", "ignore")
        self.known = sorted(set(raw))
        codes = {letter: code for code, letter in enumerate(self.known)}
        self.codes = torch.tensor([codes[letter] for letter in raw])
        self.length = length

    def __len__(self) -> int:
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        piece = self.codes[number * self.length : (number + 1) * self.length + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    """Attention to earlier letters, and a layer for each letter alone."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.alone = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features of some texts."""
        many, length, width = x.shape
        split = self.queries(self.before(x)).view(many, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        x = x + self.joined(seen.transpose(1, 2).reshape(many, length, width))
        return x + self.alone(self.after(x))


class Gpt(nn.Module):
    """A usual GPT, but small."""

    def __init__(self, letters: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.length = length
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4, 0.1) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        self.scores = nn.Linear(width, letters)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the scores of every possible next letter, at every position."""
        places = torch.arange(codes.shape[1], device=codes.device)
        return self.scores(self.last(self.blocks(self.letter(codes) + self.place(places))))

    @torch.no_grad()
    def write(self, codes: torch.Tensor, letters: int) -> torch.Tensor:
        """Return a continuation of a text."""
        self.eval()
        for _ in range(letters):
            scores = self(codes[None, -self.length :])[0, -1]
            following = torch.multinomial(functional.softmax(scores / 0.7, dim=0), 1)
            codes = torch.cat([codes, following])
        return codes


def main() -> None:
    """Train from the newest checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()

    text = Text(length=96)
    run = training.join(len(text), batch=48, parts=8, steps=chosen.steps, seed=chosen.seed)
    model = run.wrap(Gpt(len(text.known), text.length, chosen.width, chosen.layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)

    def rate(step: int) -> float:
        warm = min(1.0, (step + 1) / 30)
        return warm * (0.55 + 0.45 * math.cos(math.pi * step / run.total))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    run.register(model=model, optimizer=optimizer, schedule=schedule)
    for step in run.steps(text):
        for codes, following in step:
            scores = model(codes)
            step.backward(functional.cross_entropy(scores.flatten(0, 1), following.flatten()))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    if run.leads:
        begun = text.codes[:12].to(run.device)
        written = bytes(text.known[code] for code in model.module.write(begun, 100).tolist())
        print(written.decode("ascii"))
        guess = math.log(len(text.known))
        print(f"done: loss {run.loss or float('nan'):.3f}; guessing is {guess:.3f}", flush=True)


if __name__ == "__main__":
    main()
