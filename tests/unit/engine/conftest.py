"""Engines of these tests check the invariants of their state after each event."""

from tests.support.validation import validated_state

__all__ = ["validated_state"]
