"""Jobs as processes of this machine, each generation under a supervisor that outlives the service.

`executor` is what the service holds; `supervisor` (with `children`, `logs`, `cgroups`) is a program
of its own, one a generation, and imports nothing but the standard library; `generation` and `disk`
are what the two say to each other, on disk; `store` keeps the fences; `machine` deals out cores and
devices.
"""
