"""One module a trace format; each registers itself with `trace_format`."""
