"""Traces of every format, good ones and what becomes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

from tests.hostile.case import Content
from tests.hostile.documents import damaged_text, mutated, nasty

_LOG = [
    {
        "status": "Pass",
        "vc": "v",
        "jobid": f"log-{index}",
        "attempts": [
            {
                "start_time": "2017-10-07 01:01:00",
                "end_time": "2017-10-07 02:01:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
            }
        ],
        "submitted_time": "2017-10-07 01:00:00",
        "user": "u",
    }
    for index in range(2)
]

TRACES: Mapping[str, str] = {
    "philly": "timestamp,duration,num_gpus,gpu_time,cluster\n"
    "2017-10-03 00:00:00,3600,2,7200,6214e9\n2017-10-03 00:10:00,600,1,600,11cb48\n",
    "philly-log": json.dumps(_LOG),
    "gavel": "ResNet-18 (batch size 32)\tpython3 main.py\timage\t--num\t0\t1000\t1\t1\t-1\t0.0\n",
    "swf": "; MaxNodes: 10\n1 0 5 100 4 -1 -1 4 100 -1 1 3 1 1 1 1 -1 -1\n"
    "2 60 0 50 1 -1 -1 1 100 -1 1 3 1 1 1 1 -1 -1\n",
    "helios": "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,"
    "duration,queue\n1,u,v,2,8,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:01:00,"
    "2020-04-01 01:01:00,3600,60\n",
    "itp": "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
    "b,2000,100,bert,2900,64,2,600\na,1000,50,vgg16,1500,128,1,700\n",
    "acme": "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,"
    "duration,queue\nk,u,1,8,16,Other,FAILED,2023-05-17 11:00:58+00:00,"
    "2023-05-17 11:01:08+00:00,2023-05-17 12:01:16+00:00,3608,10\n",
    "openb": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time\n"
    "p0,6000,12288,1,460,V100M16|T4,LS,Succeeded,9500000,9600000,9500010\n",
    "tiresias": "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    "0,1,0,606,vgg19,164,30\n1,8,30,133,vgg11,147,23\n",
    "csv": "Job ID,User,Account,Submit,Start,End,Run Time (min),GPUs,State,Memory_GB\n"
    "1,ann,vision,2024-03-05 06:00:00,2024-03-05 06:10:00,2024-03-05 07:10:00,,2,COMPLETED,4\n"
    "2,bob,nlp,2024-03-05 06:30:00,,,30,gres/gpu:a100=4,FAILED,\n",
    "sacct": "JobID|User|Account|State|Submit|Eligible|Start|End|Elapsed|Timelimit|AllocTRES\n"
    "9000|ann|vision|COMPLETED|2024-03-05T06:00:00|2024-03-05T06:00:00|2024-03-05T06:10:00|"
    "2024-03-05T07:10:00|01:00:00|1-00:00:00|cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1\n"
    "9001_2|bob|nlp|TIMEOUT|2024-03-05T06:00:00|2024-03-05T08:00:00|2024-03-05T09:10:00|"
    "2024-03-05T10:10:00|01:00:00|01:00:00|cpu=8,gres/gpu=1,mem=64000M\n",
    "pai_job": "j1,i1,u,Terminated,1000,9000\nj2,i2,u,Failed,2000,9000\n",
    "pai_task": "j1,worker,2,Terminated,1000,9000,600,29,100,V100\n"
    "j2,worker,1,Failed,2500,9000,600,29,50,T4\n",
}
"""Return a valid trace of each format, which tests read."""

OPTIONS = (
    "", "", "", "?limit=1", "?limit=0", "?limit=1e9", "?from=2d", "?stretch=nan", "?vc=x",
    "?training=allreduce&elasticity=2", "?elasticity=64", "?insensitive=inf", "?x=1", "?&&=",
    "?since=0", "?since=nan", "?processors=cpus", "?duplicates=drop", "?to=1", "?limit=1&limit=2",
    "?map=submit=x", "?map=", "?timezone=Nowhere", "?dates=ydm", "?arrival=submit", "?tenant=qos",
)  # fmt: skip


def trace_files(name: str, rng: random.Random) -> tuple[str, dict[str, Content]]:
    """Return the format and path of a trace, and its files, with some fields changed."""
    if name.startswith("pai"):
        parts = {"job": "pai_job", "task": "pai_task"}
        files = {f"pai/pai_{part}_table.csv": trace_text(one, rng) for part, one in parts.items()}
        return "pai:pai", files
    form = name.removesuffix("-log")
    return f"{form}:t.csv", {"t.csv": trace_text(name, rng)}


def trace_text(name: str, rng: random.Random) -> Content:
    """Return a trace file with some fields changed."""
    if name.endswith("-log"):
        text = json.dumps(mutated(_LOG, rng, rng.choice((0, 1, 1, 2, 4))), default=str)
    else:
        blank = {"swf": " ", "gavel": "\t", "sacct": "|"}.get(name, ",")
        rows = [line.split(blank) for line in TRACES[name].splitlines()]
        for _ in range(rng.randrange(4)):
            row = rng.choice(rows)
            if row:
                row[rng.randrange(len(row))] = str(nasty(rng))
        text = "\n".join(blank.join(row) for row in rows) + "\n"
    return damaged_text(text, rng) if rng.random() < 0.2 else text
