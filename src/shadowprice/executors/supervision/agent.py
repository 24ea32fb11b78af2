"""The supervisor's program file: ``python -I -S agent.py DIRECTORY [LIFELINE [detach]]``.

``LIFELINE`` is the file descriptor of a pipe's read end (`supervisor.Supervisor`). The file is run
by path, in isolated mode and without site packages. So the service's environment doesn't affect it,
and it starts much faster.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from shadowprice.executors.supervision.supervisor import main  # needs the path set above

if __name__ == "__main__":
    if sys.argv[3:]:  # ``detach``: Ray kills the children of a worker that exits, without grace
        if os.fork():
            os._exit(0)
        os.setsid()
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:3])))
