"""Every rung of an operator and its peers, timed side by side: `python -m t2lib.bench short_swa`."""
