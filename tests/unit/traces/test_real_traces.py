"""The importers on the published bytes, against the statistics published with them."""

from pathlib import Path

import polars as pl
import pytest

from shadowprice.core.errors import InputError
from shadowprice.traces.formats.pai import TABLES
from shadowprice.traces.formats.philly import read_machine_list
from shadowprice.traces.formats.published import read_vc_sizes
from shadowprice.traces.locate import read_trace
from shadowprice.traces.statistics import describe

pytestmark = pytest.mark.traces


def test_philly_has_its_published_statistics(traces):
    result = describe(read_trace(f"philly:{traces}/philly/philly.csv.gz"))
    assert (result.jobs, result.tenants, result.max_gpus) == (52_826, 8, 32)
    shares = {name: round(100 * share, 1) for name, share in result.gpu_shares.items()}
    assert shares == {"1": 96.6, "2": 0.5, "4": 1.6, "8": 1.1, "more than 8": 0.2}
    assert [round(result.run_time[at]) for at in (10, 50, 90, 99)] == [81, 1658, 8974, 213636]
    assert round(result.gpu_hours / 1000) == 438
    assert round(result.multi_gpu_share, 2) == 0.76
    assert result.arrival_cv is not None
    assert round(result.arrival_cv, 1) == 12.4
    assert round(result.hourly_fano) == 214
    assert (result.hourly_peak, round(result.hourly_mean, 1)) == (772, 20.7)
    assert str(result.start) == "2017-09-07 03:58:57"
    assert ("blank line", 1) in [(note.reason, note.count) for note in result.notes]


def test_philly_flat_and_original_agree_on_the_readme_job(traces):
    flat = read_trace(f"philly:{traces}/philly/philly.csv.gz").jobs
    log = read_trace(f"philly:{traces}/format_samples/philly/cluster_job_log").jobs
    assert log.item(0, "duration") == 74 + 193_182
    same = flat.filter(
        (pl.col("duration") == 193_256) & (pl.col("gpus") == 8) & (pl.col("tenant") == "ee9e8c")
    )
    # The flat file here holds eight virtual clusters, not this job's.
    assert same.is_empty()
    assert "ee9e8c" not in set(flat["tenant"])


def test_philly_machine_list_sample(traces):
    machines = read_machine_list(traces / "format_samples" / "philly" / "cluster_machine_list")
    assert machines.rows() == [("m31", 8, 24 * 10**9)]


def test_openb_has_its_published_shares(traces):
    folder = traces / "research_only" / "alibaba_gpu_v2023"
    default = read_trace(f"openb:{folder}/openb_pod_list_default.csv.gz?since=0")
    dropped = dict(default.dropped)
    assert default.jobs.height + dropped["Pending: never ran"] == 5_075
    run = describe(default).run_time
    assert [round(run[at]) for at in (10, 50, 90, 99)] == [88, 744, 8915, 285498]
    dense = read_trace(f"openb:{folder}/openb_pod_list_default.csv.gz")
    assert default.jobs.height - dense.jobs.height == 17
    typed = read_trace(f"openb:{folder}/openb_pod_list_gpuspec33.csv.gz")
    assert dense.jobs["gpu_type"].null_count() == dense.jobs.height
    types = typed.jobs["gpu_type"].drop_nulls()
    assert 0 < types.len() < typed.jobs.height
    assert types.str.contains_any(["|"]).any()
    assert all(len(set(t.split("|"))) == len(t.split("|")) for t in types)


def test_itp_files_hold_32211_jobs_with_deadlines_and_the_raw_one_agrees(traces):
    folder = traces / "microsoft_itp_2021"
    clusters = [
        read_trace(f"itp:{folder}/elasticflow/cluster0{index}.csv.gz").jobs for index in range(1, 7)
    ]
    assert sum(jobs.height for jobs in clusters) == 32_211
    together = pl.concat(clusters)
    assert together["deadline"].null_count() == 0
    slack = (together["deadline"] - together["submit"]) / together["duration"]
    assert 0.499 < slack.min() < slack.max() < 1.501
    raw = read_trace(f"itp:{folder}/raw/cluster04.csv.gz").jobs
    columns = ["job", "submit", "duration", "gpus"]
    assert raw.select(columns).equals(clusters[3].select(columns))


def test_gavel_and_shockwave_files(traces):
    msr = sorted((traces / "philly" / "gavel_msr_seed0").iterdir())
    sizes = [read_trace(f"gavel:{path}").jobs.height for path in msr]
    assert sum(sizes) == 7_334
    assert max(sizes) == 2_000
    physical = read_trace(f"gavel:{traces}/gavel_physical/max_min_fairness.trace")
    assert physical.jobs.height == 96
    (shockwave,) = (traces / "shockwave").iterdir()
    trace = read_trace(f"gavel:{shockwave}")
    assert trace.jobs.height == 120
    assert trace.jobs["duration"].null_count() == 0
    assert trace.jobs["submit"].max() < 1.5 * 3600


@pytest.mark.parametrize(
    ("spec", "jobs"),
    [
        ("helios:format_samples/helios/cluster_log.csv", 3),
        ("acme:format_samples/acme/trace_seren.csv", 2),
        ("acme:format_samples/acme/trace_kalos.csv", 2),
        ("itp:philly/elasticflow/philly_103959.csv", 876),
        ("tiresias:tiresias/60_job.csv", 60),
    ],
)
def test_samples_are_read(traces, monkeypatch, spec, jobs):
    monkeypatch.setenv("SHADOWPRICE_TRACES", str(traces))
    assert read_trace(spec).jobs.height == jobs


def test_kalos_durations_are_recomputed(traces):
    jobs = read_trace(f"acme:{traces}/format_samples/acme/trace_kalos.csv").jobs
    assert jobs["duration"].to_list() == [8.0, 70.0]


def test_pai_sample_rows_that_do_not_join_are_reported(traces):
    with pytest.raises(InputError, match="job without tasks in pai_task_table: 1"):
        read_trace(f"pai:{traces}/format_samples/pai_2020")


def test_pai_columns_are_those_of_the_published_headers(traces):
    for table, columns in TABLES.items():
        header = (
            traces / "alibaba_gpu_v2020" / "headers" / f"pai_{table}_table.header"
        ).read_text()
        assert header.strip().split(",") == list(columns)


def test_helios_virtual_clusters_of_venus(traces):
    sizes = read_vc_sizes(Path(traces) / "helios" / "Venus" / "cluster_gpu_number.csv")
    first = sizes.filter(pl.col("date") == sizes["date"].min())
    assert first["gpus"].sum() == 968
    assert first.height == 18  # seven of the 25 columns are 0 on that day
    assert sizes["date"].n_unique() == 181
    assert sizes["tenant"].n_unique() == 24  # of 25 columns; vcIya never has a GPU
