# What type checkers see of the names that are imported when they are first used.
from shadowprice.api import Comparison as Comparison
from shadowprice.api import Result as Result
from shadowprice.api import WhatIf as WhatIf
from shadowprice.api import compare as compare
from shadowprice.api import open_run as open_run
from shadowprice.api import simulate as simulate
from shadowprice.api import whatif as whatif

__version__: str
