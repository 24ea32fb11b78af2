"""Astraea: tenants with fair shares, batches, posted prices and payments for what is borrowed.

Wang, Zhou, Han, Chen, Li: "Online Scheduling of Distributed Machine Learning Jobs for Incentivizing
Sharing in Multi-Tenant Systems", IEEE Transactions on Computers 72(3), 2023.
"""
