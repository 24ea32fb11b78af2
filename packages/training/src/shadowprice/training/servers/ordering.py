"""Order of the samples, chunk by chunk, whichever worker processes a chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class ChunkOrder:
    """Order of the chunks in an epoch, and of the samples in each chunk.

    Chunks are shuffled, and samples are shuffled only within their chunk, so that a worker needs
    few chunks at a time. ``samples`` is the number of samples in each chunk.
    """

    def __init__(self, samples: Sequence[int], seed: int) -> None:
        self._samples = tuple(samples)
        self._seed = seed
        self.chunks = lru_cache(maxsize=4)(self._chunks)
        """Return the chunks of an epoch in their order."""
        self.within = lru_cache(maxsize=16)(self._within)
        """Return the samples of a chunk in an epoch's order, by index in the chunk."""

    def minibatches(self, minibatch: int) -> tuple[int, ...]:
        """Return the number of mini-batches in each chunk, for mini-batches of a given size."""
        return tuple(-(-count // minibatch) for count in self._samples)

    def minibatch(self, epoch: int, chunk: int, index: int, minibatch: int) -> Indices:
        """Return the samples of a mini-batch, by index in the chunk."""
        return self.within(epoch, chunk)[index * minibatch : (index + 1) * minibatch]

    def located(self, epoch: int, positions: Indices) -> Iterator[tuple[int, Indices]]:
        """Yield chunks, and sample indices in them, for positions in the order of an epoch.

        ``positions`` are in ascending order, and less than the number of samples.
        """
        order = self.chunks(epoch)
        starts = np.concatenate([[0], np.cumsum([self._samples[chunk] for chunk in order])])
        chunk_numbers = np.searchsorted(starts, positions, side="right") - 1
        for number in np.unique(chunk_numbers):
            chunk = order[number]
            indices = positions[chunk_numbers == number] - starts[number]
            yield chunk, self.within(epoch, chunk)[indices]

    def _chunks(self, epoch: int) -> tuple[int, ...]:
        generator = np.random.default_rng(np.random.SeedSequence((self._seed, 2, epoch)))
        return tuple(int(chunk) for chunk in generator.permutation(len(self._samples)))

    def _within(self, epoch: int, chunk: int) -> Indices:
        generator = np.random.default_rng(np.random.SeedSequence((self._seed, 3, epoch, chunk)))
        order: Indices = generator.permutation(self._samples[chunk])
        return order
