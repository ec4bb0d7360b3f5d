"""Scale: how the cost of a step grows with what an owner holds and whom it serves.

    python -m benchmarks.scale

writes `out/bench-scale.json` and `out/bench-scale.png`. The floors: owner, steps, measures, picture, __main__.
"""
