"""``shadowprice``, also called as ``python -m shadowprice``."""

from __future__ import annotations

import signal
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line and exit. Ctrl-C during imports ends it without a traceback."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:  # in the background of a script, SIGINT is ignored, and stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from shadowprice.cli.main import run as run_program  # noqa: PLC0415  # slow

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_program()


if __name__ == "__main__":
    run()
