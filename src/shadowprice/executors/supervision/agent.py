"""The supervisor's program file: ``python -I -S agent.py DIRECTORY``.

It is started by its path, isolated and without site packages, so that what a service has in its
environment changes nothing in it and it starts in a fraction of the time.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from shadowprice.executors.supervision.supervisor import main  # found only now

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
