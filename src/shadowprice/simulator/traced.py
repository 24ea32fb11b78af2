"""Traces as sources of jobs; a separate module, because synthesis is slow to import."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from shadowprice.traces.generator import cluster_for
from shadowprice.traces.locate import parse_spec, read_trace
from shadowprice.traces.synthesis import OPTION_NAMES, SynthesisOptions, synthesize
from shadowprice.traces.workload import Workload


class TraceWorkload:
    """A trace, read once for all seeds; ``remarks`` count rows that were left out or repaired."""

    def __init__(self, spec: str, *, skip_invalid: bool) -> None:
        parsed = parse_spec(spec, OPTION_NAMES)
        self._options = SynthesisOptions.from_text(dict(parsed.synthesis))
        self.skip_invalid = skip_invalid or parsed.skip_invalid
        self.trace = read_trace(parsed, skip_invalid=self.skip_invalid)
        self.path, self.format = parsed.path, parsed.format
        self.start = self.trace.start
        self.remarks = [
            f"{note.count:,} x {note.reason} ({note.action})" for note in self.trace.notes
        ]

    def workload(self, slot_seconds: Fraction, seed: int) -> Workload:
        """Return the trace's workload; the seed determines values that the trace lacks."""
        return synthesize(self.trace, slot_seconds, self._options, seed=seed)

    @staticmethod
    def sized(workload: Workload, load: float) -> Mapping[str, Any]:
        """Return the content of a cluster file sized to a workload."""
        return cluster_for(workload, load=load)
