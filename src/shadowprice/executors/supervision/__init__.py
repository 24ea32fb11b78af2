"""The program that looks after processes on their machine, and outlives the service.

`supervisor` (with `children` and `cgroups`) imports nothing but the standard library and what
`generations` shares with it; `agent` is the file that begins it. The local executor starts one a
generation, a Ray node one a process.
"""

from pathlib import Path
from typing import Final

AGENT: Final = Path(__file__).with_name("agent.py")
"""The supervisor's program file."""
