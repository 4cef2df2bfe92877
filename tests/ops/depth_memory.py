"""The most memory that a call holds at one time, inputs not counted."""

import tracemalloc

import torch


def peak_of_arrays(function):
    function()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_of_tensors(function):
    function()
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    sizes, todo = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while todo:
        event = todo.pop()
        todo.extend(event.children)
        if str(event.tag).endswith("Allocation"):
            sizes.append((event.start_time_ns, event.extra_fields.alloc_size))
    held = peak = 0
    for _, size in sorted(sizes, key=lambda entry: entry[0]):
        held += size
        peak = max(peak, held)
    return peak
