"""CSD: copies of tasks against stragglers, under a deadline that may rarely be missed.

CSD is the chance-constrained problem of a 2017 paper on speculative cloning
(`docs/policies/cloning.md`). `shadowprice.cloning.api` exports the public names. Cloning isn't a
policy, but policies plan the copies of bags of tasks with it.
"""
