"""CSD: copies of tasks against stragglers, under a deadline that may be missed rarely.

`shadowprice.policies.cloning.api` offers the whole of it; this module stays light because the
registry of policies imports every folder.
"""
