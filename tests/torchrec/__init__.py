"""Tests beside TorchRec's own modules: `make torchrec-test`."""
