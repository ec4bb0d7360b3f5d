"""Two trainers that share a dense layer with DistributedDataParallel, and a table on a parameter server."""
