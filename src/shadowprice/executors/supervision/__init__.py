"""The process supervisor: a program that runs a generation and outlives the service.

Its modules import only the standard library, and those modules of `generations` that do the same.
`agent` is the program file. The local executor starts a supervisor per generation. On Ray, each
process has a supervisor.
"""
