"""State of generations that executors share: durable records, logs, reports and results.

`generation` and `disk` implement a generation's directory, and `store` the commands and fences.
`registry` has the generations in memory, and the base of executors with a `store`. `outcome`
derives a generation's result from its processes, and `logs` writes and reads their logs.
"""
