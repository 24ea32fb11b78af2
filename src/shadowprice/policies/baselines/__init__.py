"""The four schedulers that OASiS is compared with (section V): FIFO, DRF, RRH and Dorm."""

from shadowprice.policies.baselines.parameters import FifoParameters
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
)
