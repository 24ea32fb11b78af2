"""State of generations that executors share: durable records, logs, reports and results.

`generation` and `disk` implement a generation's directory, and `store` the commands and fences.
`tracked_generation` is a generation in memory, `registry` all generations of an executor, and
`disk_registry` a registry backed by a `store`. `progress_polls` runs polls that outlive their
caller. `outcome` and `process_exits` derive a generation's result from its processes. `logs` writes
and reads logs, `log_chunks` returns chunks of them, and `placement_checks` validates a start
command.
"""
