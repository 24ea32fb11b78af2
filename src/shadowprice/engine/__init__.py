"""The engine: events in, commands out; pure, deterministic and replayable."""

from shadowprice.engine.engine import Engine
from shadowprice.engine.job_record import JobRecord

__all__ = ["Engine", "JobRecord"]
