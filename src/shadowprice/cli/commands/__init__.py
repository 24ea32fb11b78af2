"""The commands, by the words that call them; close relatives share a module."""
