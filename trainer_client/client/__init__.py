"""The client, with and without await."""
