"""Measures how the cost of a step grows with the load of an owner.

    python -m benchmarks.scale

writes `out/bench-scale.json` and `out/bench-scale.png`. The layers: owner, steps, measures, picture, __main__.
"""
