"""The four schedulers that OASiS is compared with (section V): FIFO, DRF, RRH and Dorm."""

from shadowprice.policies.baselines.parameters import (
    DrfParameters,
    FifoParameters,
    RrhParameters,
)
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
    PolicyInfo(
        name="rrh",
        summary="A job is admitted if its utility less the delay it causes is above a threshold; "
        "the most rewarding jobs run, the others pause.",
        paper="OASiS (INFOCOM 2018), section V, scheme (iii); Irwin, Grit, Chase, Balancing Risk "
        "and Reward in a Market-Based Task Service (HPDC 2004)",
        parameters=RrhParameters,
        build="shadowprice.policies.baselines.rrh:build",
        details="Fixed numbers of workers, round-robin placement. Irwin's tasks fill a processor "
        "each; here a job delays the others by its dominant share of its remaining time. Penalties "
        "below zero, which utilities here do not have, are left out.",
    ),
)
