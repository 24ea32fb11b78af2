"""Keys of all jobs differ, whatever characters their names have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shadowprice.core.job_keys import name_of_key, owned_key, qualified_name, repeated_key

texts = st.text(st.sampled_from("ab/~%1257EF.:"), min_size=1, max_size=6)
jobs = st.tuples(st.none() | texts, texts, st.none() | st.integers(1, 10**6))


def _key(job: tuple[str | None, str, int | None]) -> str:
    tenant, name, repeated = job
    qualified = qualified_name(tenant, name)
    return qualified if repeated is None else repeated_key(qualified, repeated)


@given(jobs, jobs)
def test_different_jobs_have_different_keys(
    one: tuple[str | None, str, int | None], other: tuple[str | None, str, int | None]
) -> None:
    assert (_key(one) == _key(other)) == (one == other)
    assert owned_key(one[1]) not in {_key(one), _key(other)}


@given(jobs)
def test_the_key_holds_the_name(job: tuple[str | None, str, int | None]) -> None:
    assert name_of_key(_key(job)) == job[1]
    assert name_of_key(owned_key(job[1])) == job[1]


def test_a_key_is_readable() -> None:
    assert qualified_name(None, "train") == "train"
    assert qualified_name("vision", "train") == "vision/train"
    assert repeated_key("vision/train", 17) == "vision/train~17"
    assert qualified_name("a/b", "50%~") == "a%2Fb/50%25%7E"
