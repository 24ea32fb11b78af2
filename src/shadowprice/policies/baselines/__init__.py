"""The four schedulers that OASiS is compared with (section V): FIFO, DRF, RRH and Dorm."""

from shadowprice.policies.baselines.parameters import DrfParameters, FifoParameters
from shadowprice.policies.registry import PolicyInfo

POLICIES = (
    PolicyInfo(
        name="fifo",
        summary="Jobs run in order of arrival, each with a fixed number of workers; the first "
        "that finds no room blocks the rest.",
        paper="OASiS (INFOCOM 2018), section V, scheme (i): the default of Hadoop and Spark",
        parameters=FifoParameters,
        build="shadowprice.policies.baselines.fifo:build",
        details="Round-robin placement. A job that loses its server returns to its place in the "
        "queue with its progress. A job whose number of workers never fits runs with fewer.",
    ),
    PolicyInfo(
        name="drf",
        summary="All jobs are admitted; their numbers of workers are max-min fair in dominant "
        "shares, worked out anew whenever a job arrives or leaves.",
        paper="OASiS (INFOCOM 2018), section V, scheme (ii); Ghodsi et al., Dominant Resource "
        "Fairness (NSDI 2011), Algorithm 1",
        parameters=DrfParameters,
        build="shadowprice.policies.baselines.drf:build",
        details="Progressive filling in whole workers, each with the parameter servers it needs, "
        "placed round robin; jobs keep the places they had where their number allows it. Only "
        "numbers of workers that gain more than every smaller one are granted. Shares are of the "
        "whole cluster's amounts.",
    ),
)
