"""Upload of a directory's files to a service on another machine, for a job.

Clients use `ignore` to select files and `packing` to write them into an archive. Services and
executors use `archive` to read an archive, which may be hostile, and `unpacking` to unpack it.
`host` identifies a machine and its files, so that no upload is needed on the same one.
"""
