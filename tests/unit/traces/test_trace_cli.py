"""``shadowprice trace`` and ``generate`` on the command line."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shadowprice.core.errors import InputError
from shadowprice.inputs.files import read_cluster, read_jobs
from shadowprice.traces.locate import SELECTION_OPTIONS
from shadowprice.traces.registry import formats
from shadowprice.traces.synthesis import SYNTHESIS_OPTIONS
from tests.hostile.trace_files import TRACES
from tests.support.trace_commands import app, run_trace_command

RAW = "job_id,submission_time,duration,num_gpu\na,100,1000,1\nb,3700,5000,8\n"


@pytest.fixture
def raw(tmp_path) -> Path:
    path = tmp_path / "raw.csv"
    path.write_text(RAW)
    return path


def test_info_as_table_and_json(raw):
    text = run_trace_command("trace", "info", f"itp:{raw}")
    assert "50.00%" in text
    assert "Fano" in text
    record = json.loads(run_trace_command("trace", "info", f"itp:{raw}?limit=1", "-o", "json"))
    assert record["jobs"] == 1
    assert record["arrival_cv"] is None
    assert "unknown" in run_trace_command("trace", "info", f"itp:{raw}?limit=1")
    assert record["notes"] == [{"action": "dropped", "reason": "not selected", "count": 1}]


def test_info_shows_no_gpu_time_if_durations_are_unknown(tmp_path):
    path = tmp_path / "gavel.trace"
    path.write_text(TRACES["gavel"] * 3 + TRACES["gavel"].replace("\t1\t1\t-1", "\t4\t1\t-1"))
    text = run_trace_command("trace", "info", f"gavel:{path}")
    assert re.search(r"GPU-time +│ unknown; 25% of the jobs take several GPUs", text)


def test_names_of_a_log_are_shown_as_they_are(tmp_path):
    path = tmp_path / "[bold].csv"
    path.write_text("submit,duration,gpus[/bold]\n0,60,1\n")
    text = run_trace_command("trace", "info", f"csv:{path}", "--map", "gpus=gpus[/bold]")
    assert "[bold].csv" in "".join(text.split())
    assert "1 x gpus: column 'gpus[/bold]'" in text


def test_convert_writes_jobs_and_a_matching_cluster(raw, tmp_path):
    out, where = tmp_path / "jobs.jsonl", tmp_path / "cluster.yaml"
    text = run_trace_command(
        "trace", "convert", f"itp:{raw}?stretch=2", out, "--cluster", where, "--seed", 3
    )
    assert text.startswith("2 jobs in ")
    on = read_cluster(where)
    assert [job.name for job in read_jobs(out, on)] == ["a", "b"]
    first = out.read_bytes()
    run_trace_command("trace", "convert", f"itp:{raw}?stretch=2", out, "--seed", 3)
    assert out.read_bytes() == first
    assert {path.name for path in tmp_path.iterdir()} == {"raw.csv", "jobs.jsonl", "cluster.yaml"}


def test_convert_refuses_names_and_folders_it_cannot_write(raw, tmp_path):
    with pytest.raises(InputError, match=r"ends in \.jsonl or \.yaml"):
        run_trace_command("trace", "convert", f"itp:{raw}", tmp_path / "jobs.csv")
    with pytest.raises(InputError, match="does not exist; create it first"):
        run_trace_command("trace", "convert", f"itp:{raw}", tmp_path / "no" / "jobs.jsonl")


def test_a_file_that_could_not_be_read_again_is_not_written(tmp_path):
    rows = "".join(f"{job},{job},60,1\n" for job in range(9_000))
    (tmp_path / "log.csv").write_text(f"job,submit,duration,gpus\n{rows}")
    with pytest.raises(InputError, match=r"limit of 250,000 values of a YAML file.* in \.jsonl"):
        run_trace_command("trace", "convert", f"csv:{tmp_path}/log.csv", tmp_path / "jobs.yaml")
    servers = ("--workers", 9_000, "--parameter-servers", 9_000)
    with pytest.raises(InputError, match=r"of a YAML file, .*; ask for fewer servers"):
        run_trace_command("generate", "--out", tmp_path / "gen", "--jobs", 5, *servers)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_formats_lists_every_one():
    rows = json.loads(run_trace_command("trace", "formats", "-o", "json"))
    assert {row["name"] for row in rows} >= {"philly", "swf"}
    lines = run_trace_command("trace", "formats").splitlines()
    for name, meaning in {**SELECTION_OPTIONS, **SYNTHESIS_OPTIONS}.items():
        assert f"  {name}: {meaning}" in lines
    for row in rows:
        assert {f"  note     {note}" for note in row["gotchas"]} <= set(lines)


def test_the_documentation_states_every_format_and_option():
    page = (Path(__file__).parents[3] / "docs" / "traces.md").read_text(encoding="utf-8")
    options = dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", page, re.MULTILINE))
    assert options == {**SELECTION_OPTIONS, **SYNTHESIS_OPTIONS}
    parts = re.split(r"^### (.*)\n", page.partition("\n## Formats\n")[2], flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert sections.keys() == formats().keys()
    for name, one in formats().items():
        section = sections[name]
        assert section.startswith(f"\n{one.title}.\n\n*{one.citation}.* Licence: {one.licence}.")
        assert tuple(re.findall(r"^- (.*)$", section, re.MULTILINE)) == one.gotchas
        assert dict(re.findall(r"`(\w+)`: (.*)\.$", section, re.MULTILINE)) == one.options


def test_a_job_without_gpus_has_one_note(tmp_path):
    path = tmp_path / "log.csv"
    rows = TRACES["helios"].splitlines()
    path.write_text("\n".join([*rows, rows[1].replace("1,u,v,2", "2,u,v,0")]))
    assert "CPU" not in run_trace_command("trace", "info", f"helios:{path}")
    for option, jobs in (("", "1 job"), ("?cpu_jobs=keep", "2 jobs")):
        result = CliRunner().invoke(
            app, ["trace", "convert", f"helios:{path}{option}", str(tmp_path / "jobs.jsonl")]
        )
        assert result.stdout.startswith(f"{jobs} in ")
        notes = [line for line in result.stderr.splitlines() if "CPU" in line]
        left_out = "note: 1 CPU job left out (cpu_jobs=keep schedules them)"
        assert notes == ([] if option else [left_out])


def test_a_long_note_is_one_line(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("submit,duration,gpus,deadline\n1704067200,1000,1,1704067300\n")
    command = ["trace", "convert", f"csv:{path}", str(tmp_path / "jobs.jsonl")]
    notes = CliRunner().invoke(app, command).stderr.splitlines()
    assert max(map(len, notes)) > 100
    assert all(note.startswith("note: ") for note in notes)


def test_generate_writes_a_runnable_pair(tmp_path):
    out = tmp_path / "gen"
    text = run_trace_command(
        "generate", "--out", out, "--preset", "calibrated", "--jobs", 20, "--slots", 50
    )
    assert text.startswith("20 jobs and 100 servers in ")
    on = read_cluster(out / "cluster.yaml")
    assert on.servers == 100
    assert on.horizon == 50
    assert len(read_jobs(out / "jobs.jsonl", on)) == 20


def test_converted_jobs_are_readable_in_every_script(tmp_path):
    path, out = tmp_path / "log.csv", tmp_path / "jobs.yaml"
    path.write_text("job,user,submit,duration,gpus\n1,j\u00f6rg,0,60,1\n", encoding="utf-8")
    run_trace_command("trace", "convert", f"csv:{path}", out)
    assert "tenant: j\u00f6rg\n" in out.read_text(encoding="utf-8")
