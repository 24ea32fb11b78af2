"""The event stream gives the same events however it is cut, without incomplete ones."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.client.clients import SseDecoder, reconnect_delays

EVENTS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(1, 10**12)),
        st.sampled_from(["admitted", "slot", "finished"]),
        st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3),
    ),
    max_size=6,
)


def _lines(number: int | None, kind: str, data: object) -> list[str]:
    record = data if number is None else {"id": number, "kind": kind, "data": data}
    head = [] if number is None else [f"id: {number}"]
    return [*head, f"event: {kind}", f"data: {json.dumps(record)}", ""]


@given(EVENTS, st.lists(st.sampled_from([": alive", "retry: 2000", "unknown: x"]), max_size=3))
def test_events_come_as_they_were_sent(events, noise: list[str]) -> None:
    decoder = SseDecoder()
    found = []
    for number, kind, data in events:
        for line in [*noise, *_lines(number, kind, data)]:
            found += decoder.feed(line)
    assert [(one.id, one.kind, one.data) for one in found] == events
    numbers = [number for number, _, _ in events if number is not None]
    assert decoder.last == (numbers[-1] if numbers else None)


def test_a_broken_event_is_not_reported_and_does_not_count() -> None:
    decoder = SseDecoder(7)
    lines = _lines(8, "admitted", {"a": "b"})
    assert [event for line in lines[:-1] for event in decoder.feed(line)] == []
    decoder.discard()
    assert list(decoder.feed("")) == []
    assert decoder.last == 7
    assert [event.id for line in lines for event in decoder.feed(line)] == [8]


def test_a_stream_that_breaks_before_its_first_event_resumes_where_it_started() -> None:
    decoder = SseDecoder()
    assert [event for line in ("retry: 2000", "id: 41") for event in decoder.feed(line)] == []
    assert decoder.last is None
    assert list(decoder.feed("")) == []
    assert decoder.last == 41
    decoder.discard()
    assert decoder.last == 41
    assert list(decoder.feed("")) == []
    assert decoder.last == 41


@pytest.mark.parametrize("data", ["nonsense", "[1]", '"text"'])
def test_an_invalid_event_is_an_error(data: str) -> None:
    decoder = SseDecoder()
    list(decoder.feed(f"data: {data}"))
    with pytest.raises(ValueError):  # noqa: PT011  # of any kind that json raises
        list(decoder.feed(""))


def test_waits_grow_to_half_a_minute() -> None:
    waits = reconnect_delays()
    results = [next(waits) for _ in range(10)]
    assert results[:3] == [0.5, 1.0, 2.0]
    assert results[-1] == 30.0
