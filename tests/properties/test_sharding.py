"""Division of a model over servers: even, complete, and nothing twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.training import TrainingError
from shadowprice.training.servers.ordering import ChunkOrder
from shadowprice.training.servers.sharding import Layout

sizes = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@given(sizes=sizes, servers=st.integers(1, 12))
def test_servers_have_every_element_once_and_differ_by_one(sizes: list[int], servers: int) -> None:
    layout = Layout(tuple((f"p{number}", size) for number, size in enumerate(sizes)))
    if servers > layout.elements:
        with pytest.raises(TrainingError, match=f"can't be divided over {servers} servers"):
            layout.pieces(0, servers)
        return
    line = [(name, element) for name, size in layout.sizes for element in range(size)]
    dealt = [
        [(piece.name, element) for piece in pieces for element in range(piece.start, piece.stop)]
        for pieces in (layout.pieces(server, servers) for server in range(servers))
    ]
    assert [entry for part in dealt for entry in part] == line
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert [layout.span(server, servers) for server in range(servers)] == [
        (sum(map(len, dealt[:server])), sum(map(len, dealt[: server + 1])))
        for server in range(servers)
    ]


@given(samples=st.lists(st.integers(1, 9), min_size=1, max_size=6), epoch=st.integers(0, 2))
def test_positions_of_an_epoch_are_all_samples_once(samples: list[int], epoch: int) -> None:
    order = ChunkOrder(samples, 7)
    count = sum(samples)
    found = []
    for first in range(0, count, 4):
        positions = np.arange(first, min(first + 4, count))
        for chunk, places in order.located(epoch, positions):
            found += [(chunk, int(place)) for place in places]
    everything = [(chunk, place) for chunk, size in enumerate(samples) for place in range(size)]
    assert sorted(found) == everything
    one_by_one = [
        (chunk, int(place)) for chunk in order.chunks(epoch) for place in order.within(epoch, chunk)
    ]
    by_minibatch = [
        (chunk, int(place))
        for chunk in order.chunks(epoch)
        for index in range(order.minibatches(4)[chunk])
        for place in order.minibatch(epoch, chunk, index, 4)
    ]
    assert found == one_by_one == by_minibatch
