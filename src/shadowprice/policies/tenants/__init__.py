"""Code shared by policies in which tenants own units of capacity: units, cells and gangs.

`rolling` doesn't use it: its shares are amounts of resources (`rolling.quotas`).
"""
