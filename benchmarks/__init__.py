"""Benchmarks: the same work through torch.distributed.rpc and through this project, in turn, on one machine.

    python -m benchmarks            everything: a table, out/bench.json and out/bench.png
    python -m benchmarks.scale      how cost grows with tables, batches, sessions, objects and contexts

The floors, from the bottom (an import may only point down):

    rows, sizes, models, data       what is measured, and on what
    work, trainer, sides            the processes that are measured: each side in its own idiom
    leash, process, fleet           starting, pausing and ending them
    harness, report, machine        rounds, medians, ratios
    table, picture, figures         showing them
"""
