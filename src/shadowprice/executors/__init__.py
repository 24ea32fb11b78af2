"""Executors, which run jobs: one contract, and one package for each environment.

The live service talks to `contract`. `registry` finds an executor by name. Each executor depends
only on the contract, the core and the modules here that all of them share.
"""
