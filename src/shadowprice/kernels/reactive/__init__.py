"""Placement in the next slot: fair shares, risk and reward, round robin."""
