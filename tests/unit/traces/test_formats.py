"""Each format on a few rows: every feature that its importer declares."""

import gzip
import json
import re
from pathlib import Path

import pytest

from shadowprice.core.errors import InputError
from shadowprice.traces.formats.philly import read_machine_list
from shadowprice.traces.formats.published import read_vc_sizes
from shadowprice.traces.locate import read_trace
from shadowprice.traces.records import SCHEMA, Trace
from shadowprice.traces.registry import formats, get_format
from tests.hostile.trace_files import TRACES


def read(tmp_path: Path, form: str, text: str, options: str = "") -> Trace:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    return read_trace(f"{form}:{path}{options}")


def notes(trace: Trace) -> dict[str, tuple[str, int]]:
    return {note.reason: (note.action, note.count) for note in trace.notes}


def test_every_declared_format_says_what_it_is():
    known = {"philly", "helios", "pai", "openb", "acme", "itp", "gavel", "swf", "tiresias"}
    assert set(formats()) >= known
    page = (Path(__file__).parents[3] / "docs" / "traces.md").read_text(encoding="utf-8")
    # Tests and the fuzzer damage these to make bad traces.
    assert {re.split("[_-]", name)[0] for name in TRACES} == set(formats())
    for one in formats().values():
        assert f"\n### {one.name}\n" in page
        assert one.title
        assert one.citation
        assert one.licence
        assert one.files
        assert one.gotchas
        assert one.read.__doc__


def test_unknown_format_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'philly'"):
        get_format("phily")


@pytest.mark.parametrize(
    ("form", "state"),
    [("helios", "COMPLETED"), ("acme", "FAILED"), ("openb", "Succeeded"), ("philly-log", "Pass")],
)
@pytest.mark.parametrize(
    ("new", "status"),
    [("RUNNING", "unfinished"), ("OUT_OF_MEMORY", "failed"), ("Odd", None)],
)
def test_states_are_those_of_the_common_table(tmp_path, form, state, new, status):
    assert TRACES[form].count(state) >= 1
    trace = read(tmp_path, form.partition("-")[0], TRACES[form].replace(state, new))
    assert trace.jobs["status"][0] == status


@pytest.mark.parametrize(
    ("form", "option", "choices"),
    [
        ("philly", "duplicates", "keep or drop"),
        ("swf", "processors", "gpus or cpus"),
        ("csv", "dates", "dmy or mdy"),
        ("sacct", "arrival", "eligible or submit"),
        ("sacct", "tenant", "account or user or group or partition or qos"),
    ],
)
def test_another_choice_of_an_option_is_refused(tmp_path, form, option, choices):
    with pytest.raises(InputError, match=rf"{option}='x': write {option}={choices}$"):
        read(tmp_path, form, TRACES[form], f"?{option}=x")
    for choice in choices.split(" or "):
        if choice not in {"partition", "qos", "group"}:  # the dump has no such column
            assert len(read(tmp_path, form, TRACES[form], f"?{option}={choice}").jobs)


PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 06:13:36,2759.0,1,2759.0,6214e9
2017-10-09 06:13:03,2951.0,2,5902.0,0e4a51
2017-10-09 06:13:36,2759.0,1,2759.0,6214e9
2017-11-05 01:30:00,10.0,1,11.0,ee9e8c

"""


def test_philly_flat_is_sorted_named_and_counted(tmp_path):
    trace = read(tmp_path, "philly", PHILLY)
    jobs = trace.jobs
    assert jobs.schema == SCHEMA
    assert jobs["job"].to_list() == ["0e4a51-3", "6214e9-2", "6214e9-4", "ee9e8c-5"]
    assert jobs["submit"].to_list()[:3] == [0.0, 33.0, 33.0]
    assert str(trace.start) == "2017-10-09 06:13:03"
    assert jobs["gpus"].to_list() == [2.0, 1.0, 1.0, 1.0]
    assert notes(trace) == {
        "blank line": ("dropped", 1),
        "exact duplicate of an earlier row": ("kept", 1),
        "gpu_time is not duration x num_gpus; the product is used": ("repaired", 1),
        "local time that happened twice (2017-11-05 01:00-02:00)": ("kept", 1),
    }


def test_philly_virtual_clusters_that_look_like_numbers_stay_text(tmp_path):
    assert set(read(tmp_path, "philly", PHILLY).jobs["tenant"]) == {"6214e9", "0e4a51", "ee9e8c"}


def test_philly_duplicates_can_be_dropped(tmp_path):
    trace = read(tmp_path, "philly", PHILLY, "?duplicates=drop")
    assert trace.jobs.height == 3
    assert notes(trace)["exact duplicate of an earlier row"] == ("dropped", 1)


def attempt(start: str | None, end: str | None, gpus: int) -> dict[str, object]:
    detail = [{"ip": "m1", "gpus": [f"gpu{index}" for index in range(gpus)]}]
    return {"start_time": start, "end_time": end, "detail": detail}


def entry(name: str, *attempts: dict[str, object], status: str = "Pass") -> dict[str, object]:
    return {
        "status": status,
        "vc": "v",
        "jobid": name,
        "attempts": list(attempts),
        "submitted_time": "2017-10-07 01:00:00",
        "user": "u",
    }


def test_philly_log_sums_attempts_and_counts_what_never_ran(tmp_path):
    at = "2017-10-07 01:{:02d}:00".format
    log = [
        entry("plain", attempt(at(1), at(3), 8), attempt(at(5), at(9), 8)),
        entry("unequal", attempt(at(1), at(11), 2), attempt(at(20), at(25), 4), status="Killed"),
        entry("no-attempt"),
        entry("running", attempt(at(1), "None", 1)),
        entry("half", attempt(None, at(2), 1), attempt(at(3), at(4), 1), status="Failed"),
        entry("no-gpu", attempt(at(1), at(2), 0)),
    ]
    trace = read(tmp_path, "philly", json.dumps(log))
    jobs = {row["job"]: row for row in trace.jobs.iter_rows(named=True)}
    assert jobs.keys() == {"plain", "unequal", "half"}
    assert jobs["plain"]["duration"] == 360.0
    assert jobs["plain"]["queue"] == 60.0
    # 2 GPUs for 600 s and 4 for 300 s are 2,400 GPU-s, kept at the longest attempt's 2 GPUs.
    assert (jobs["unequal"]["gpus"], jobs["unequal"]["duration"]) == (2.0, 1200.0)
    assert jobs["half"]["duration"] == 60.0
    assert [jobs[name]["status"] for name in ("plain", "unequal", "half")] == [
        "passed",
        "cancelled",
        "failed",
    ]
    counted = notes(trace)
    assert counted["job with no attempt: it never ran"] == ("dropped", 1)
    assert counted["last attempt has no end: the job was still running"] == ("dropped", 1)
    assert counted["no attempt ran on a GPU"] == ("dropped", 1)
    assert counted["attempt without start, end, run time or GPUs is not counted"] == ("repaired", 2)
    assert counted["attempts differ in GPUs; GPU-time is kept at those of the longest"] == (
        "repaired",
        1,
    )


def test_philly_log_faults_name_the_job(tmp_path):
    broken = entry("bad", attempt("yesterday", "2017-10-07 01:02:00", 1))
    lacking = {"jobid": "lacking", "attempts": []}
    with pytest.raises(InputError) as caught:
        read(tmp_path, "philly", json.dumps([broken, lacking]))
    assert "[0] 'bad'" in caught.value.faults[0].location
    assert "submitted_time" in caught.value.faults[1].message


def test_philly_machine_list_has_blanks_and_units(tmp_path):
    path = tmp_path / "cluster_machine_list"
    path.write_text("machineId, number of GPUs, single GPU mem\nm31,8, 24GB\nm32, 2,12GB\n")
    assert read_machine_list(path).rows() == [("m31", 8, 24 * 10**9), ("m32", 2, 12 * 10**9)]
    path.write_text("machineId, number of GPUs, single GPU mem\nm31,8, 24\n")
    with pytest.raises(InputError, match="line 2: single GPU mem '24' isn't an amount of memory"):
        read_machine_list(path)


HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,\
duration,queue
a,u,v,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:11,2020-06-09 18:51:11,600,10
b,u,v,0,4,1,TIMEOUT,2020-06-09 18:41:02,2020-06-09 18:41:02,2020-06-09 18:42:02,77,0
c,u,w,2,4,1,SUSPENDED,2020-06-09 18:41:03,2020-06-09 18:41:03,2020-06-09 18:42:03,60,0
d,u,w,2,4,1,CANCELLED,2020-06-09 18:41:04,,2020-06-09 18:42:03,,
"""


def test_helios(tmp_path):
    trace = read(tmp_path, "helios", HELIOS)
    jobs = trace.jobs
    assert jobs["job"].to_list() == ["a", "b", "c"]
    assert jobs["duration"].to_list() == [600.0, 60.0, 60.0]
    assert jobs["queue"].to_list() == [10.0, 0.0, 0.0]
    assert jobs["status"].to_list() == ["passed", "failed", "unfinished"]
    assert notes(trace) == {
        "no start or end: never ran": ("dropped", 1),
        "duration is not end - start; the difference is used": ("repaired", 1),
    }


def test_helios_virtual_cluster_sizes_leave_out_absent_ones(tmp_path):
    path = tmp_path / "cluster_gpu_number.csv"
    path.write_text("date,vcA,vcB,total\n2020-04-01,8,0,8\n2020-04-02,8,16,24\n")
    sizes = read_vc_sizes(path)
    assert sizes.filter(tenant="vcB")["gpus"].to_list() == [16]
    assert sizes.height == 3
    path.write_text("date,vcA,vcB,total\n2020-04-01,8,0,9\n")
    with pytest.raises(InputError, match="line 2: the GPUs do not add up"):
        read_vc_sizes(path)


ACME = """job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,type,state,submit_time,start_time,\
end_time,duration,queue
k,ua,8,64,960,1000,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,\
2023-05-17 11:01:16+00:00,18,10.0
s,ub,1,8,128,,Other,COMPLETED,2023-05-17 19:01:00+08:00,2023-05-17 19:01:00+08:00,\
2023-05-17 19:02:00+08:00,60,0
"""


def test_acme_recomputes_durations_and_reads_both_zones(tmp_path):
    trace = read(tmp_path, "acme", ACME)
    kalos, seren = trace.jobs.iter_rows(named=True)
    assert (kalos["job"], kalos["duration"], kalos["queue"]) == ("k", 8.0, 10.0)
    assert kalos["memory"] == 8_000_000_000_000
    assert (seren["submit"], seren["memory"], seren["tenant"]) == (2.0, None, "ub")
    (note,) = trace.notes
    assert (note.action, note.count) == ("repaired", 1)


OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\n"
    "old,1000,1,1,1000,,LS,Running,5,9900000,5\n"
    "part,6000,12288,1,460,V100M16|V100M32|V100M32,LS,Running,9500000,9600000,9500010\n"
    "cpu,6000,12288,0,0,,BE,Succeeded,9500100,9600000,9500100\n"
    "eight,6000,12288,8,1000,,LS,Failed,9500200,9600000,9500200\n"
    "never,6000,12288,1,1000,,LS,Pending,9500300,9600000,\n"
)


def test_openb(tmp_path):
    trace = read(tmp_path, "openb", OPENB)
    part, cpu, eight = trace.jobs.iter_rows(named=True)
    assert (part["gpus"], part["queue"], part["duration"]) == (0.46, 10.0, 99_990.0)
    assert (part["gpu_type"], part["status"]) == ("V100M16|V100M32", "unfinished")
    assert part["memory"] == 12288 * 2**20
    assert (cpu["gpus"], eight["gpus"], eight["status"]) == (0.0, 8.0, "failed")
    assert notes(trace) == {
        "created before t=9e+06 s, long before the dense part": ("dropped", 1),
        "Pending: never ran": ("dropped", 1),
        "pod_phase Running with a deletion_time": ("kept", 1),
        "gpu_spec names a type twice": ("repaired", 1),
    }
    assert read(tmp_path, "openb", OPENB, "?since=0").jobs.height == 4


def test_openb_refuses_a_share_of_several_gpus(tmp_path):
    with pytest.raises(InputError, match="line 5: gpu_milli 500 does not go with num_gpu"):
        read(tmp_path, "openb", OPENB.replace("8,1000,,LS,Failed", "8,500,,LS,Failed"))


def test_itp_with_and_without_deadlines(tmp_path):
    described = read(
        tmp_path,
        "itp",
        "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
        "b,2000,100,bert,2900,64,2,600\na,1000,50,vgg16,1500,128,1,700\n",
    )
    assert described.jobs["job"].to_list() == ["a", "b"]
    assert described.jobs["deadline"].to_list() == [500.0, 1900.0]
    assert described.jobs["iterations"].to_list() == [50, 100]
    raw = read(tmp_path, "itp", "job_id,submission_time,duration,num_gpu\nx,5810,60,16\n")
    assert raw.jobs["deadline"].to_list() == [None]
    philly = read(
        tmp_path,
        "itp",
        "job_id,submit_time,real_iteration,model_name,ddl,batch_size,num_gpu,real_duration,"
        "duration,iteration\n0,7,1282877,vgg16,771220,256,1,976570,976570,1282877\n",
    )
    assert philly.jobs["deadline"].to_list() == [771_213.0]
    with pytest.raises(InputError, match="line 1: isn't the header of an ITP trace"):
        read(tmp_path, "itp", "a,b\n1,2\n")
    with pytest.raises(InputError, match=r"line 2: deadline 5.0 is not after submission"):
        read(
            tmp_path,
            "itp",
            "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
            "b,2000,100,bert,5,64,2,600\n",
        )


def test_gavel_layouts_have_arrival_and_gpus_in_their_own_columns(tmp_path):
    seven = read(tmp_path, "gavel", 'LM (batch size 5)\tcd "x && y\t-n\t1\t77\t6.5\t2\n')
    ten = read(tmp_path, "gavel", "A3C\tcmd\tdir\t-n\t1\t77\t4\t2\t3.0\t9\n")
    twelve = read(
        tmp_path, "gavel", "CycleGAN\tcmd\tdir\t-n\t1\t77\t8\tgns\t1\t-1.000000\t1418\t55\n"
    )
    rows = [trace.jobs.row(0, named=True) for trace in (seven, ten, twelve)]
    assert [row["gpus"] for row in rows] == [2.0, 4.0, 8.0]
    assert [row["model"] for row in rows] == ["LM", "A3C", "CycleGAN"]
    assert [row["batch_size"] for row in rows] == [5, None, None]
    assert [row["duration"] for row in rows] == [None, None, 1418.0]
    assert [row["iterations"] for row in rows] == [77, 77, 77]
    assert notes(ten) == {
        "SLO is not used": ("repaired", 1),
        "priority_weight is not used": ("repaired", 1),
    }
    assert notes(twelve) == {"batch size changes during the run (mode)": ("kept", 1)}
    with pytest.raises(InputError, match="line 1: has 3 tab-separated fields"):
        read(tmp_path, "gavel", "a\tb\tc\n")


SWF = """; Version: 2.2
; UnixStartTime: 1000000
;
  1      10   5   100   4 -1 2048   4 200 -1  1  3  7 -1 -1 -1 -1 -1
2 20 0 50 -1 -1 -1 8 60 -1 0 3 7 -1 -1 -1 -1 -1
3 30 0 50 2 -1 -1 2 60 -1 3 3 7 -1 -1 -1 -1 -1
4 40 0 0 2 -1 -1 2 60 -1 5 3 7 -1 -1 -1 -1 -1

5 50 -1 -1 2 -1 -1 2 60 -1 5 -1 -1 -1 -1 -1 -1 -1
"""


TIRESIAS = """job_id,num_gpu,submit_time,iterations,model_name,duration,interval
7,1,30,606,vgg19,164,23
8,8,0,133,vgg11,147,30
"""


def test_tiresias(tmp_path):
    jobs = read(tmp_path, "tiresias", TIRESIAS).jobs
    assert jobs["job"].to_list() == ["8", "7"]
    assert jobs["submit"].to_list() == [0.0, 30.0]
    assert jobs["duration"].to_list() == [147.0, 164.0]
    assert jobs["gpus"].to_list() == [8.0, 1.0]
    assert jobs["model"].to_list() == ["vgg11", "vgg19"]
    assert jobs["iterations"].null_count() == 2
    for wrong in ("7,0,30", "7,1,-30"):
        with pytest.raises(InputError, match="line 2"):
            read(tmp_path, "tiresias", TIRESIAS.replace("7,1,30", wrong))


def test_swf(tmp_path):
    trace = read(tmp_path, "swf", SWF)
    first, second, last = trace.jobs.iter_rows(named=True)
    assert (first["job"], first["gpus"], first["memory"]) == ("job-1", 4.0, 2048 * 1024 * 4)
    assert (first["queue"], first["status"], first["tenant"]) == (5.0, "passed", "group-7")
    assert (second["gpus"], second["status"]) == (8.0, "failed")
    assert (last["duration"], last["queue"], last["user"]) == (None, None, None)
    assert [row["time_limit"] for row in (first, second, last)] == [200.0, 60.0, 60.0]
    assert str(trace.start) == "1970-01-12 13:46:50"
    assert notes(trace) == {
        "blank line": ("dropped", 1),
        "part of a job that another line sums up": ("dropped", 1),
        "run time 0: never ran": ("dropped", 1),
        "processors allocated unknown; those requested are used": ("repaired", 1),
        "run time unknown": ("kept", 1),
    }
    cores = read(tmp_path, "swf", SWF, "?processors=cpus")
    assert cores.jobs["gpus"].to_list() == [0.0] * 3
    assert cores.jobs["cpus"].to_list() == [4.0, 8.0, 2.0]
    with pytest.raises(InputError, match=r"line 5: text .* does not have 18 fields"):
        read(tmp_path, "swf", SWF.replace("2 20 0 50", "2 20 50"))


def test_swf_gives_the_same_trace_whole_and_line_by_line(tmp_path):
    clean = read(tmp_path, "swf", SWF)
    # A comment among the rows makes the reader go line by line.
    commented = read(tmp_path, "swf", SWF.replace("\n4 40", "\n; noon\n4 40"))
    assert commented.jobs.equals(clean.jobs)
    assert commented.notes == clean.notes
    tabs = read(tmp_path, "swf", SWF.replace("  ", "\t ").replace("\n", " \r\n"))
    assert tabs.jobs.equals(clean.jobs)
    with pytest.raises(InputError, match=r"line 5: text .* has a field that is not a number"):
        read(tmp_path, "swf", SWF.replace("2 20 0 50", "2 20 0 x"))
    with pytest.raises(InputError, match=r"line 5: text .* has a field that is not a number"):
        read(tmp_path, "swf", SWF.replace("2 20 0 50", "2 20 0 nan"))


@pytest.fixture
def pai(tmp_path) -> Path:
    (tmp_path / "pai_job_table.csv").write_text(
        "j1,i1,u1,Terminated,100.0,700.0\n"
        "j2,i2,u2,Failed,200.0,800.0\n"
        "j3,i3,u3,Running,300.0,\n"
        "j4,i4,u4,Terminated,400.0,900.0\n"
    )
    (tmp_path / "pai_task_table.csv").write_text(
        "j1,worker,4.0,Terminated,150.0,700.0,600.0,10.0,50.0,V100\n"
        "j1,ps,2.0,Terminated,140.0,700.0,400.0,5.0,,\n"
        "j1,evaluator,1.0,Terminated,150.0,700.0,600.0,10.0,50.0,V100\n"
        "j2,tensorflow,1.0,Failed,260.0,800.0,100.0,,100.0,MISC\n"
    )
    with gzip.open(tmp_path / "pai_group_tag_table.csv.gz", "wt") as file:
        file.write("i1,u1,V100M32,g,nmt\n")
    return tmp_path


def test_pai_joins_tasks_and_counts_percent_times_instances(pai):
    trace = read_trace(f"pai:{pai}")
    first, second = trace.jobs.iter_rows(named=True)
    assert (first["job"], first["model"], first["tenant"]) == ("j1", "nmt", "u1")
    assert (first["gpus"], first["workers"], first["ps"]) == (2.5, 4, 2)
    assert (first["cpus"], first["memory"]) == (24 + 8 + 6, 60 * 2**30)
    # Submitted at 100, its first task (the parameter server) starts at 140.
    assert (first["submit"], first["queue"], first["duration"]) == (0.0, 40.0, 560.0)
    assert (second["gpus"], second["status"], second["submit"]) == (1.0, "failed", 100.0)
    assert notes(trace) == {
        "no end_time: unfinished job": ("dropped", 1),
        "job without tasks in pai_task_table": ("dropped", 1),
    }


def test_pai_takes_the_start_from_instances_where_given(pai):
    (pai / "pai_instance_table.csv").write_text(
        "j1,worker,n,w,i1,Terminated,190.0,700.0,m\nj1,ps,n,w,i1,Terminated,180.0,700.0,m\n"
    )
    assert read_trace(f"pai:{pai}").jobs["duration"].to_list() == [520.0, 540.0]


def test_pai_refuses_a_header_and_a_missing_table(pai):
    job_table = pai / "pai_job_table.csv"
    job_table.write_text("job_name,inst_id,user,status,start_time,end_time\n")
    with pytest.raises(InputError, match="line 1: start_time 'start_time' is not a number"):
        read_trace(f"pai:{pai}")
    job_table.unlink()
    with pytest.raises(InputError, match=r"lacks pai_job_table\.csv"):
        read_trace(f"pai:{pai}")
    with pytest.raises(InputError, match="is not a directory"):
        read_trace(f"pai:{pai / 'pai_task_table.csv'}")
