"""Every rung of an operator and its peers, timed side by side: `python -m t2lib.bench [operator ...]`.

One run times all cases in turns, so that a ratio of two of them means something. The table gives medians with
quartiles, forward and with backward; GB/s of the bytes that have to move, and what share that is of a copy in
the same run; the peak of memory; how times grow with each size; and the ratios that the library has to keep.
What was not timed stands below with the reason; a ratio that could not be formed is "not measured". The exit
status is 1 if a rung failed that runs on this machine.

    python -m t2lib.bench depth_mix --tokens 4096 --states 12
    python -m t2lib.bench streams                              every residual stream in one decoder
    python -m t2lib.bench --device cuda --json results/        all operators on a GPU, a file each
    python -m t2lib.bench depth_mix --compare FILE             ratios to an earlier run
    python -m t2lib.bench --read FILE ... --plot DIR           tables and plots of what is stored
    python -m t2lib.bench short_swa --device cuda --tune FILE  look for better configurations
"""
