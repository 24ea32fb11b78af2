"""``shadowprice``, also called as ``python -m shadowprice``."""

from __future__ import annotations

import signal
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line and exit; Ctrl-C while it is imported ends it without a traceback."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:  # in the background of a script, SIGINT is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from shadowprice.cli.main import run as run_program  # noqa: PLC0415  # takes long

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_program()


if __name__ == "__main__":
    run()
