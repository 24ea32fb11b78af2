"""GPU demand of a job, for policies that measure GPU-time."""

from __future__ import annotations

import re
from typing import Final

from shadowprice.core.amounts import MILLI
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job

_GPU: Final = re.compile(r"gpu(?![a-z0-9])", re.IGNORECASE)


def gpus_of_worker(job: Job, cluster: Cluster) -> int:
    """Return the GPUs that one worker takes, in thousandths.

    Resources named ``gpu``, alone or followed by a type (``gpu/v100``, ``gpu-a100``), count. A
    worker without a GPU counts as one GPU, so that the job's worker count still matters.
    """
    columns = [column for name, column in cluster.column.items() if _GPU.match(name)]
    return sum(int(job.worker[column]) for column in columns) or MILLI
