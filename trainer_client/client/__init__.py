"""The client, asynchronous and blocking."""
