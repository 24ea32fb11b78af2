"""Base class for users' own policies; a stateless policy only defines `decide`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from shadowprice.core.events import Decision, PolicyEvent
from shadowprice.core.policy import Capabilities, PolicyContext, View
from shadowprice.policies import registry

__all__ = ["BasePolicy", "Parameters"]

Parameters = registry.Parameters


class BasePolicy(ABC):
    """A policy that keeps no state between events.

    A policy with state overrides ``__init__`` to create it and `resume` to rebuild it. The
    docstring of a subclass is its description in ``shadowprice policies``.
    """

    Parameters: ClassVar[type[registry.Parameters]] = registry.Parameters
    """Model of the parameters that ``--set`` sets."""
    capabilities: ClassVar[Capabilities] = Capabilities()
    paper: ClassVar[str] = ""
    """Citation of the paper that describes the policy."""
    counts_places: ClassVar[bool] = False
    knows_all_jobs: ClassVar[bool] = False
    live_settings: ClassVar[Mapping[str, object]] = {}
    """For these three attributes, see the fields of `registry.PolicyInfo`."""

    def __init__(self, context: PolicyContext, parameters: registry.Parameters) -> None:
        del context
        self.parameters = parameters

    @abstractmethod
    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event; see `shadowprice.core.policy.Policy`."""

    def resume(self, view: View) -> None:
        """Do nothing: a policy without state has nothing to rebuild from the view."""
        del view

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return all parameters with their values, defaults included."""
        return self.parameters.model_dump()
