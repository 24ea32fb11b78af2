"""Baseline schedulers that other policies are compared with.

FIFO, DRF and RRH follow section V of OASiS. Shortest remaining time, least attained service,
backfilling and ElasticFlow follow their own papers.
"""

from shadowprice.policies.baselines.parameters import (
    BackfillParameters,
    DrfParameters,
    ElasticFlowParameters,
    FifoParameters,
    LasParameters,
    RrhParameters,
    SrtfParameters,
)
from shadowprice.policies.registry import PolicyInfo

POLICIES = (
    PolicyInfo(
        name="fifo",
        summary="Jobs run in order of arrival, each with a fixed number of workers; the first "
        "that doesn't fit blocks the rest.",
        paper="OASiS (INFOCOM 2018), section V, scheme (i): the default of Hadoop and Spark",
        parameters=FifoParameters,
        build="shadowprice.policies.baselines.fifo:FifoPolicy",
        details="Round-robin placement. A job that loses its server returns to its place in the "
        "queue with its progress. A job whose number of workers never fits runs with fewer.",
    ),
    PolicyInfo(
        name="drf",
        summary="All jobs are admitted; their numbers of workers are max-min fair in dominant "
        "shares, computed again whenever a job arrives or leaves.",
        paper="OASiS (INFOCOM 2018), section V, scheme (ii); Ghodsi et al., Dominant Resource "
        "Fairness (NSDI 2011), Algorithm 1",
        parameters=DrfParameters,
        build="shadowprice.policies.baselines.drf:DrfPolicy",
        details="Progressive filling in whole workers, each with the parameter servers it needs, "
        "placed round robin; a job keeps its servers if its new number allows it. Only numbers of "
        "workers that are faster than every smaller one are granted. Shares are fractions of the "
        "cluster's total capacity.",
    ),
    PolicyInfo(
        name="rrh",
        summary="A job is admitted if its utility less the delay it causes is above a threshold; "
        "the most rewarding jobs run, the others pause.",
        paper="OASiS (INFOCOM 2018), section V, scheme (iii); Irwin, Grit, Chase, Balancing Risk "
        "and Reward in a Market-Based Task Service (HPDC 2004)",
        parameters=RrhParameters,
        build="shadowprice.policies.baselines.rrh:RiskRewardPolicy",
        details="Fixed numbers of workers, round-robin placement. Irwin's tasks fill a processor "
        "each; here a job delays the others by its dominant share of its remaining time. Penalties "
        "below zero, which utilities here do not have, are left out.",
    ),
    PolicyInfo(
        name="srtf",
        summary="All jobs are admitted; in each slot those with the shortest remaining time run "
        "for as long as they fit, the others pause.",
        paper="Schrage, A Proof of the Optimality of the Shortest Remaining Processing Time "
        "Discipline (Operations Research 1968); SRTF and SRSF in Gu et al., Tiresias (NSDI 2019)",
        parameters=SrtfParameters,
        build="shadowprice.policies.baselines.srtf:SrtfPolicy",
        details="Fixed numbers of workers, round-robin placement; jobs keep their servers while "
        "they run. It knows the remaining time of every job, and ignores utilities.",
    ),
    PolicyInfo(
        name="las",
        summary="All jobs are admitted; those with less GPU-time so far than a threshold run "
        "before the others, in two queues.",
        paper="Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning "
        "(NSDI 2019), discretised two-dimensional LAS",
        parameters=LasParameters,
        build="shadowprice.policies.baselines.las:LasPolicy",
        details="Fixed numbers of workers, round-robin placement. It doesn't know how long a job "
        "takes. Tiresias's placement by the skew of a model's tensors is left out.",
    ),
    PolicyInfo(
        name="backfill",
        summary="Jobs start in order of priority and run to their end; others may start earlier "
        "if they delay no reservation (EASY or conservative backfilling), as under Slurm.",
        paper="Lifka, The ANL/IBM SP Scheduling System (JSSPP 1995); Mu'alem, Feitelson, "
        "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM "
        "SP2 with Backfilling (TPDS 2001); Slurm's priority/multifactor and sched/backfill",
        parameters=BackfillParameters,
        build="shadowprice.policies.baselines.backfill:BackfillPolicy",
        details="Fixed numbers of workers, round-robin placement, no preemption. A job states "
        "`priority` and `walltime` in its file; without a wall time, its work at its number of "
        "workers is the estimate. Fair share, quality of service and partitions are left out.",
    ),
    PolicyInfo(
        name="elasticflow",
        summary="A job is admitted if its deadline and those of all admitted jobs can be met "
        "together; each gets the fewest workers for that, and spare ones by marginal return.",
        paper="Gu et al., ElasticFlow: An Elastic Serverless Training Platform for Distributed "
        "Deep Learning (ASPLOS 2023), Algorithms 1 and 2",
        parameters=ElasticFlowParameters,
        build="shadowprice.policies.baselines.elasticflow:ElasticFlow",
        details="The deadline is that of a deadline utility, or the target of a sigmoid; other "
        "jobs run on spare capacity. It ignores values. Plans are of sums over the cluster, as in "
        "the paper; placement is round robin, without its powers of two.",
    ),
)
