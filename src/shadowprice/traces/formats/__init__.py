"""One module per trace format; each registers itself with `trace_format`."""
