"""The durable log of an owner: what has changed since its last checkpoint."""
