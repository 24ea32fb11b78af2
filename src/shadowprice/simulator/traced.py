"""The part of a source that reads a trace; what draws what traces lack is slow to import."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from shadowprice.traces.generator import cluster_for
from shadowprice.traces.locate import parse_spec, read_trace
from shadowprice.traces.synthesis import OPTION_NAMES, SynthesisOptions, synthesize
from shadowprice.traces.workload import Workload


class Traced:
    """A trace, read once for all seeds.

    Parameters
    ----------
    spec : str
        As ``--trace`` names it.
    skip_invalid : bool
        Leave faulty rows out.

    Attributes
    ----------
    path : Path
        Where it was found.
    format : TraceFormat
        Its format.
    start : float or None
        Moment of its first submission, where it tells.
    remarks : list of str
        What was left out or mended, and why.
    """

    def __init__(self, spec: str, *, skip_invalid: bool) -> None:
        parsed = parse_spec(spec, OPTION_NAMES)
        self._options = SynthesisOptions.from_text(dict(parsed.synthesis))
        self._trace = read_trace(parsed, skip_invalid=skip_invalid)
        self.path, self.format = parsed.path, parsed.format
        self.start = self._trace.start
        self.remarks = [
            f"{note.count:,} x {note.reason} ({note.action})" for note in self._trace.notes
        ]

    def workload(self, slot_seconds: Fraction, seed: int) -> Workload:
        """Return its jobs, with what the trace lacks drawn from the seed."""
        return synthesize(self._trace, slot_seconds, self._options, seed=seed)

    @staticmethod
    def sized(workload: Workload, load: float) -> Mapping[str, Any]:
        """Return the content of a cluster file sized to a workload."""
        return cluster_for(workload, load=load)
