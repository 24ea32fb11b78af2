"""State of generations that executors share: durable records, logs, reports and results.

`generation` and `disk` implement a generation's directory, and `store` implements the commands and
fences. `registry` keeps the generations in memory, and has base classes of executors. `outcome`
derives a generation's result from the ends of its processes, and `logs` writes and reads logs.
"""
