"""Short tables of results and records at a prompt and in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shadowprice
from shadowprice.client import ServiceError
from shadowprice.client.calls import Page, RecordTuple, SubmitProblem, SubmitResult
from shadowprice.rest import ApiRecord, NewToken, Server
from shadowprice.results.report.number_format import format_number
from shadowprice.short_table import (
    MAX_CELL_CHARS,
    MAX_COLUMNS,
    MAX_FIELDS,
    MAX_ROWS,
    ShortTable,
    format_value,
    table_of_records,
)

HOSTILE = "<script>alert('x')</script> & \x1b[31m\n\u202e\ud800"


class _Cells(HTMLParser):
    """Cells and elements of a page, read by another parser."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        del attrs
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


@given(
    st.lists(st.lists(st.text(max_size=80), min_size=3, max_size=3), max_size=30),
    st.text(max_size=20),
)
def test_the_html_has_the_cells_as_text_and_no_other_elements(
    rows: list[list[str]], title: str
) -> None:
    table = ShortTable(title, ("a", "b", "c"), rows, len(rows), {1})
    page = _Cells(table.html())
    assert set(page.tags) <= {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
    for cells, row in zip(page.rows[1:], rows, strict=False):
        for cell, text in zip(cells, row, strict=True):
            if text.isprintable() and len(text) <= MAX_CELL_CHARS:
                assert cell == text
            assert cell.isprintable()
            assert len(cell) <= MAX_CELL_CHARS
    assert len(page.rows) == (1 + min(len(rows), MAX_ROWS) if rows else 0)
    assert all(line.isprintable() for line in table.text().split("\n"))


def test_text_is_aligned_and_says_what_is_left_out() -> None:
    rows = [[f"job-{index}", f"{index * 10}"] for index in range(MAX_ROWS)]
    table = ShortTable("Jobs", ("job", "slots"), rows, 1_234, {1})
    assert table.text().splitlines()[:3] == ["Jobs", "job     slots", "job-0       0"]
    assert table.text().endswith("job-19    190\nand 1,214 more rows")
    wide = ShortTable("", [f"c{index}" for index in range(13)], [["x"] * 13], 1)
    assert len(wide.text().splitlines()[1].split()) == MAX_COLUMNS
    assert wide.html().endswith("<p>and 3 more columns</p></div>")
    assert ShortTable("No jobs", ("job",), [], 0).text() == "No jobs"
    assert ShortTable("No jobs", ("job",), [], 0).html() == "<div><p>No jobs</p></div>"


def test_hostile_names_are_escaped_in_both_forms() -> None:
    table = table_of_records(HOSTILE, [[("job", HOSTILE), ("tenant", None), ("ran", 2)]])
    assert "\x1b" not in table.text()
    assert len(table.text().split("\n")) == 3
    assert "<script>" not in table.html()
    assert "&lt;script&gt;" in table.html()
    table.html().encode()  # no half of a surrogate pair
    assert table.columns == ["job", "ran"]  # no record has a tenant


CLUSTER = {"slot": "20min", "horizon": 50, "servers": [{"name": "gpu", "capacity": {"gpu": 4}}]}


def _jobs(count: int) -> list[dict[str, Any]]:
    return [
        {
            "name": f"<script>{index}",
            "chunks": 2,
            "minibatches": 40,
            "minibatch_time": "30s",
            "worker": {"gpu": 1},
        }
        for index in range(count)
    ]


def test_results_show_their_tables_in_a_notebook() -> None:
    run = shadowprice.simulate(CLUSTER, _jobs(25), "srtf")
    both = shadowprice.compare(CLUSTER, _jobs(25), ["srtf", "fifo"], seeds=2)
    results = {
        "run": run,
        "slot": run.at(0),
        "comparison": both,
        "difference": both["srtf"].diff(both["fifo"]),
        "whatif": shadowprice.whatif(CLUSTER, _jobs(25), "srtf", changes=[{"gpu": 1}]),
    }
    for name, result in results.items():
        html = result._repr_html_()
        page = _Cells(html)
        lines = repr(result).splitlines()
        assert "script" not in page.tags, name
        assert 4 <= len(lines) <= MAX_ROWS + 3, name
        assert len(page.rows) > 2, name
        for cells in page.rows[1:]:  # both forms have the same cells
            assert any(all(cell in line for cell in cells) for line in lines), name
    assert "script" in results["slot"]._repr_html_()
    assert repr(results["slot"]).splitlines()[-1] == f"and {25 - MAX_ROWS} more rows"
    assert repr(both).splitlines()[1].split() == ["srtf", "fifo"]
    assert "+1 gpu" in repr(results["whatif"])


def test_empty_results_show_a_heading() -> None:
    run = shadowprice.simulate(CLUSTER, _jobs(2), "fifo")
    same = run.diff(run)
    earned = format_number(run.summary["total_utility"])
    title = f"fifo earned {earned}, fifo {earned}; 0 jobs with different results"
    assert repr(same).splitlines() == [title]
    assert "<table>" not in same._repr_html_()
    assert repr(RecordTuple(())) == "0 entries"
    assert repr(Page((), None)) == "0 entries"
    assert repr(SubmitResult((), ())) == "0 jobs accepted, 0 with problems"


def test_records_of_the_client_show_their_fields() -> None:
    server = Server(
        name="<b>gpu</b>", kind="gpu", role="any", state="up", capacity={"gpu": "4"}, jobs=[]
    )
    servers = RecordTuple((server, server))
    assert servers == (server, server)
    assert repr(RecordTuple((server,))).startswith("1 entry\n")
    lines = repr(servers).splitlines()
    assert lines[0] == "2 entries"
    assert lines[1].split() == ["name", "kind", "role", "state", "capacity"]
    assert lines[2].split() == ["<b>gpu</b>", "gpu", "any", "up", "gpu=4"]
    assert "<b>" not in servers._repr_html_()
    assert ["name", "<b>gpu</b>"] in _Cells(server._repr_html_()).rows
    assert repr(Page(servers, 7)).startswith("2 entries, more follow\n")
    error = ServiceError(422, {"detail": "no <gpu>"})
    problem = SubmitResult((), (SubmitProblem(0, "<b>", error),))
    assert "<b>" in repr(problem)
    assert "<b>" not in problem._repr_html_()
    token = NewToken(id=1, role="tenant", tenant="a", note="", expires=None, token="secret-1")
    assert "secret-1" not in token._repr_html_()
    assert "secret-1" not in repr(RecordTuple((token,)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, -0.0, True, 10**30])
def test_any_number_is_a_cell(value: object) -> None:
    lines = table_of_records("", [[("x", value)]]).text().splitlines()
    assert lines[1].strip() == "x"
    assert lines[2].strip()


@pytest.mark.parametrize("count", [MAX_ROWS + 1, MAX_FIELDS, MAX_FIELDS + 1, MAX_FIELDS + 5])
def test_a_record_shows_more_fields_than_a_table_has_rows(count: int) -> None:
    html = ApiRecord(**{f"field_{index}": index for index in range(count)})._repr_html_()
    page = _Cells(html)
    assert len(page.rows) == 1 + min(count, MAX_FIELDS)
    omitted = count - MAX_FIELDS
    noun = "field" if omitted == 1 else "fields"
    assert (f"<p>and {omitted} more {noun}</p>" in html) == (omitted > 0)
    assert ("more" in html) == (omitted > 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (12345.0, "12,345"),
        (99999.5, "99,999.5"),
        (1234567.0, "1,234,567"),
        (-2500001.0, "-2,500,001"),
        (1e15, "1e+15"),
        (0.125, "0.125"),
    ],
)
def test_large_values_have_no_exponent(value: float, expected: str) -> None:
    assert format_value(value) == expected
