"""What would have had a refused job admitted, each answer verified before it is given."""

from shadowprice.simulator.advice.advisor import advise

__all__ = ["advise"]
