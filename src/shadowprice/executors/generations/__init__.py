"""What every executor shares: a generation's record and its end, its log, and what is told of it.

`generation` and `disk` are a generation's directory; `store` keeps the fences; `entry` is what is
in memory of one, `roster` all of them, `desk` those whose orders are on this disk; `looks` at what
jobs report by file go on though nobody waits; `verdict` and `parts` say how a generation ended by
how its processes did; `logs` keeps what they write, `pieces` gives it out; `placing` is what any
executor refuses.
"""
