"""Jobs of many tasks on fewer machines: waves under FIFO, and when a free machine takes a copy.

This is a simulation of its own, with its own clock: tasks last continuous times on single-slot
machines and a decision falls at every end of a task (design note 0005).
"""

from shadowprice.simulator.cloning.waves import Rule, WaveRule, Waves, run
from shadowprice.simulator.cloning.workload import WaveJobs, measured_jobs, poisson_jobs

__all__ = ["Rule", "WaveJobs", "WaveRule", "Waves", "measured_jobs", "poisson_jobs", "run"]
