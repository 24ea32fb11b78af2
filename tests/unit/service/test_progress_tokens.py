"""A progress token is valid for one generation of one job of one service."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shadowprice.service.auth import progress_token, verify_progress_token
from shadowprice.service.problems import ProblemError

KEY, OTHER_KEY = b"k" * 32, b"l" * 32
generations = st.integers(1, 10**9 - 1)


def _is_refused(header: str | None, key: bytes = KEY) -> bool:
    with pytest.raises(ProblemError) as caught:
        verify_progress_token(key, header)
    return caught.value.code == "unauthenticated"


@given(st.text(min_size=1, max_size=300), generations)
def test_a_token_states_its_job_and_generation(job: str, generation: int) -> None:
    token = progress_token(KEY, job, generation)
    assert token.isascii()
    assert verify_progress_token(KEY, f"Bearer {token}") == (job, generation)
    assert _is_refused(f"Bearer {token}", OTHER_KEY)
    assert _is_refused(token)
    assert _is_refused(f"Basic {token}")


@given(st.text(min_size=1), st.text(min_size=1), generations, generations)
def test_mixed_parts_of_two_tokens_are_invalid(
    one: str, other: str, first: int, second: int
) -> None:
    assume((one, first) != (other, second))
    start, _, job = progress_token(KEY, one, first).partition(".")
    other_start, _, other_job = progress_token(KEY, other, second).partition(".")
    if job != other_job:
        assert _is_refused(f"Bearer {start}.{other_job}")
    if first != second:
        mixed = start.replace(f"spp_{first}_", f"spp_{second}_")
        assert _is_refused(f"Bearer {mixed}.{job}")
    assert other_start != start


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer spp_1_",
        "Bearer spp_1_a.b",
        "Bearer spp_1_a.",
        "Bearer spp_1_" + "a" * 43 + "._w",
        "Bearer spp_" + "9" * 5_000 + "_a.YQ",
        "Bearer spp_\u0661_a.YQ",
    ],
)
def test_invalid_tokens_are_refused(header: str | None) -> None:
    assert _is_refused(header)
