"""Pages that a person can read: one file each, nothing loaded from elsewhere."""

from shadowprice.results.report.page import write_report

__all__ = ["write_report"]
