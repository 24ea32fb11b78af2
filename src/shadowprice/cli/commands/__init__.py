"""Commands of the command line; closely related commands share a module."""
