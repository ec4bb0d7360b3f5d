"""Two trainers share a dense layer by DistributedDataParallel and a table on a parameter server."""
