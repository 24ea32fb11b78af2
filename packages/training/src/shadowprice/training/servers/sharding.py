"""Even division of a model over parameter servers, by elements.

The parameters are concatenated in the model's order, and every server has one range of the result.
The lengths of two servers' ranges differ by at most one element. A parameter may be split over
several servers, each of which has a slice of it. A range depends only on the server's rank and on
the number of servers.
"""

from __future__ import annotations

from dataclasses import dataclass

from shadowprice.training.errors import TrainingError


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """A server's slice of one parameter: a range of its elements in the flattened parameter."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Layout:
    """The concatenated parameters of a model: names and numbers of elements, in its order."""

    sizes: tuple[tuple[str, int], ...]

    @property
    def elements(self) -> int:
        """Number of elements of all parameters."""
        return sum(size for _, size in self.sizes)

    def span(self, server: int, servers: int) -> tuple[int, int]:
        """Return a server's half-open range of elements; raise `TrainingError` if it is empty."""
        elements = self.elements
        if not 1 <= servers <= elements:
            raise TrainingError(
                f"a model of {elements} elements can't be divided over {servers} servers"
            )
        return elements * server // servers, elements * (server + 1) // servers

    def pieces(self, server: int, servers: int) -> tuple[ParameterSlice, ...]:
        """Return a server's slices of parameters, in the model's order."""
        begin, end = self.span(server, servers)
        pieces = []
        offset = 0
        for name, size in self.sizes:
            start, stop = max(begin - offset, 0), min(end - offset, size)
            if start < stop:
                pieces.append(ParameterSlice(name, start, stop))
            offset += size
        return tuple(pieces)
