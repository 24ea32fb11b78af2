"""The order of the data, chunk by chunk: of the job, not of who works on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class ChunkOrder:
    """In which order an epoch goes through chunks, and through the samples of each.

    Chunks are shuffled, and samples within their chunk, so that a worker needs few chunks at once.

    Parameters
    ----------
    samples : sequence of int
        Samples of every chunk.
    seed : int
        What the order follows from.
    """

    def __init__(self, samples: Sequence[int], seed: int) -> None:
        self._samples = tuple(samples)
        self._seed = seed
        self.chunks = lru_cache(maxsize=4)(self._chunks)
        """Give the chunks of an epoch, in their order."""
        self.within = lru_cache(maxsize=16)(self._within)
        """Give the samples of a chunk in an epoch, in their order, by their place in the chunk."""

    def minibatches(self, minibatch: int) -> tuple[int, ...]:
        """Return how many mini-batches of so many samples every chunk has."""
        return tuple(-(-count // minibatch) for count in self._samples)

    def minibatch(self, epoch: int, chunk: int, index: int, minibatch: int) -> Indices:
        """Return the samples of a mini-batch, by their place in the chunk."""
        return self.within(epoch, chunk)[index * minibatch : (index + 1) * minibatch]

    def located(self, epoch: int, positions: Indices) -> Iterator[tuple[int, Indices]]:
        """Yield chunks, and places in them, for positions in the order of an epoch.

        Parameters
        ----------
        epoch : int
            The epoch.
        positions : array of int64
            Increasing, from 0 to the number of samples.
        """
        order = self.chunks(epoch)
        begins = np.concatenate([[0], np.cumsum([self._samples[chunk] for chunk in order])])
        inside = np.searchsorted(begins, positions, side="right") - 1
        for number in np.unique(inside):
            chunk = order[number]
            places = positions[inside == number] - begins[number]
            yield chunk, self.within(epoch, chunk)[places]

    def _chunks(self, epoch: int) -> tuple[int, ...]:
        draw = np.random.default_rng(np.random.SeedSequence((self._seed, 2, epoch)))
        return tuple(int(one) for one in draw.permutation(len(self._samples)))

    def _within(self, epoch: int, chunk: int) -> Indices:
        draw = np.random.default_rng(np.random.SeedSequence((self._seed, 3, epoch, chunk)))
        order: Indices = draw.permutation(self._samples[chunk])
        return order
