"""CSD: copies of tasks against stragglers, under a deadline that may be missed rarely.

`shadowprice.cloning.api` offers the whole of it. It is not a policy: policies that plan copies
use it.
"""
