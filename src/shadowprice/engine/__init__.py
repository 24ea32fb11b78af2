"""The engine: events in, commands out; pure, deterministic and replayable."""

from shadowprice.engine.engine import Engine
from shadowprice.engine.state import JobRecord

__all__ = ["Engine", "JobRecord"]
