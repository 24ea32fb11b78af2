"""Files of a directory that a job gets although its service runs on another machine.

`ignore` selects files and `packing` writes them into an archive, for clients. `archive` reads an
archive that may be hostile, and `unpacking` unpacks it, for services and executors. `host` returns
whether two processes see the same files.
"""
