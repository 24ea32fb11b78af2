"""State of generations that executors share: durable records, logs, reports and results.

`generation` and `disk` implement a generation's directory, and `store` the commands and fences.
`entry` is a generation in memory, `roster` all generations of an executor, and `desk` a roster
backed by a `store`. `looks` runs progress polls that outlive their caller. `verdict` and `parts`
derive a generation's result from its processes. `logs` writes and reads logs, `pieces` returns
chunks of them, and `placing` validates a start command.
"""
