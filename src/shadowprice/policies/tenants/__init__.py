"""Shared code of policies that give tenants units of capacity: units, cells and gangs.

`rolling` doesn't use it: its shares are amounts of resources (`rolling.quotas`).
"""
