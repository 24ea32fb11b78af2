"""The process supervisor: a program that runs a generation and outlives the service.

`supervisor`, `children` and `cgroups` import only the standard library and the modules of
`generations` that do so too. `agent` is the program file. The local executor starts a supervisor
per generation; a Ray node starts one per process.
"""
