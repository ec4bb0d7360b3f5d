"""Ways to reach an owner. The only part of the client that knows a transport library."""
