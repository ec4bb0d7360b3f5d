"""Measures the same work through torch.distributed.rpc and through this project, in turn, on one machine.

    python -m benchmarks            everything: a table, out/bench.json and out/bench.png
    python -m benchmarks.scale      how cost grows with tables, batches, sessions, objects and contexts

The layers, from the bottom; a module imports only from those above it in this list:

    rows, sizes, models, nets, data, jobs   the rows and their inputs
    work, trainer, sides            the processes that are measured: each side in its own idiom
    leash, process, fleet           start, pause and end the processes
    harness, report, machine        rounds, medians, ratios
    table, picture, figures         show the results; steady, steady_picture: those of the steady rows
"""
