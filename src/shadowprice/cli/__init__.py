"""The command line: thin; each command parses, calls and prints."""
