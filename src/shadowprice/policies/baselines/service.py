"""How much of a cluster's GPUs a job takes, for policies that weigh GPU-time."""

from __future__ import annotations

import re
from typing import Final

from shadowprice.core.amounts import MILLI
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job

_GPU: Final = re.compile(r"gpu(?![a-z0-9])", re.IGNORECASE)


def gpus_of_worker(job: Job, cluster: Cluster) -> int:
    """Return the thousandths of a GPU that one worker takes.

    Resources named ``gpu``, or ``gpu`` with a type behind it (``gpu/v100``, ``gpu-a100``), count; a
    worker of a job that asks for none counts as one GPU, so that its width still tells.
    """
    columns = [at for name, at in cluster.column.items() if _GPU.match(name)]
    return sum(int(job.worker[at]) for at in columns) or MILLI
