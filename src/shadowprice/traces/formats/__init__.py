"""One module for each trace format; each registers itself with `trace_format`."""
