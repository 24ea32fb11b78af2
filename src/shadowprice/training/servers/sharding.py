"""How a model is divided over parameter servers: evenly, by elements, whatever its parameters are.

The parameters are laid end to end in the model's own order, and every server has one stretch of
that line. So the largest and the smallest server differ by one element, a parameter may lie on
several servers, and what a server has follows from its number and how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from shadowprice.training.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Piece:
    """What one server has of one parameter.

    Parameters
    ----------
    name : str
        The parameter.
    start, stop : int
        Which of its elements, counted as it is flattened.
    """

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Elements."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Layout:
    """The parameters of a model, laid end to end.

    Parameters
    ----------
    sizes : tuple of (str, int)
        Every parameter with its elements, in the model's order.
    """

    sizes: tuple[tuple[str, int], ...]

    @property
    def elements(self) -> int:
        """Elements of all parameters."""
        return sum(size for _, size in self.sizes)

    def span(self, server: int, servers: int) -> tuple[int, int]:
        """Return the first element of a server, and the first that is not its own any more.

        Raises
        ------
        TrainingError
            If there are more servers than elements.
        """
        elements = self.elements
        if not 1 <= servers <= elements:
            raise TrainingError(
                f"a model of {elements} elements cannot be divided over {servers} servers"
            )
        return elements * server // servers, elements * (server + 1) // servers

    def pieces(self, server: int, servers: int) -> tuple[Piece, ...]:
        """Return what a server has, in the order of the line."""
        first, last = self.span(server, servers)
        found = []
        begin = 0
        for name, size in self.sizes:
            start, stop = max(first - begin, 0), min(last - begin, size)
            if start < stop:
                found.append(Piece(name, start, stop))
            begin += size
        return tuple(found)
