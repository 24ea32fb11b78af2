"""CSD: copies of tasks against stragglers, under a deadline that is rarely missed.

`shadowprice.cloning.api` exports all of it. Cloning isn't a policy, but policies plan copies with
it.
"""
