"""Order of chunks and samples in an epoch; the same for any assignment of chunks to workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

# Each use of the seed has a stream of random numbers; 0 and 1 are those of `training.sampling`.
_CHUNKS_STREAM: Final = 2
_SAMPLES_STREAM: Final = 3


class ChunkOrder:
    """Order of the chunks in an epoch, and of the samples in each chunk; both are shuffled."""

    def __init__(self, samples: Sequence[int], seed: int) -> None:
        self._samples = tuple(samples)
        self._seed = seed
        self.chunks = lru_cache(maxsize=4)(self._chunks)  # return the chunks of an epoch in order
        self.within = lru_cache(maxsize=16)(self._within)  # samples of a chunk in order, by index

    def minibatches(self, minibatch: int) -> tuple[int, ...]:
        """Return the number of mini-batches in each chunk, for mini-batches of a given size."""
        return tuple(-(-count // minibatch) for count in self._samples)

    def minibatch(self, epoch: int, chunk: int, index: int, minibatch: int) -> Indices:
        """Return the samples of a mini-batch, by index in the chunk."""
        return self.within(epoch, chunk)[index * minibatch : (index + 1) * minibatch]

    def located(self, epoch: int, positions: Indices) -> Iterator[tuple[int, Indices]]:
        """Yield each chunk with its sample indices, for ascending positions in an epoch's order."""
        order = self.chunks(epoch)
        starts = np.concatenate([[0], np.cumsum([self._samples[chunk] for chunk in order])])
        chunk_indices = np.searchsorted(starts, positions, side="right") - 1
        for index in np.unique(chunk_indices):
            chunk = order[index]
            indices = positions[chunk_indices == index] - starts[index]
            yield chunk, self.within(epoch, chunk)[indices]

    def _chunks(self, epoch: int) -> tuple[int, ...]:
        generator = _generator(self._seed, _CHUNKS_STREAM, epoch)
        return tuple(int(chunk) for chunk in generator.permutation(len(self._samples)))

    def _within(self, epoch: int, chunk: int) -> Indices:
        generator = _generator(self._seed, _SAMPLES_STREAM, epoch, chunk)
        order: Indices = generator.permutation(self._samples[chunk])
        return order


def _generator(*key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(key))
