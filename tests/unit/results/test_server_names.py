"""Servers are listed in short, and none is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shadowprice.results.server_names import (
    compress_name_list,
    compress_names,
    group_equal_placements,
    server_group,
)
from tests.oracles.name_lists import expand_name_list

NAMES = st.one_of(
    st.builds("{}-{}".format, st.sampled_from(["gpu", "a-b", "rack-1"]), st.integers(0, 40)),
    st.sampled_from(["spare", "gpu", "gpu-007", "net-", "-", "gpu-x3"]),
)


@given(st.lists(NAMES, unique=True))
def test_every_name_is_reported_once(names: list[str]) -> None:
    expanded = [name for part in compress_name_list(names) for name in expand_name_list(part)]
    assert sorted(expanded) == sorted(names)


def test_names_are_folded_as_slurm_folds_them() -> None:
    assert (
        compress_names(["gpu-3", "net", "gpu-1", "gpu-2", "gpu-7", "cpu-5"])
        == "gpu-[1-3,7] cpu-5 net"
    )
    assert server_group("gpu-3") == "gpu"
    assert server_group("spare") == "spare"


def test_servers_with_as_much_on_them_stand_together() -> None:
    standing = [("gpu-0", 2), ("gpu-1", 1), ("gpu-2", 2)]
    assert group_equal_placements(standing) == [(["gpu-0", "gpu-2"], 2), (["gpu-1"], 1)]
