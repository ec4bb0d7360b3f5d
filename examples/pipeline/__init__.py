"""A network whose layers are split over two owners that work concurrently; ``python -m examples.pipeline``.

A member of a group that is started with ``allow=["examples.pipeline.shards"]`` may host either half.
"""
