"""An owner's state in its data directory, written when it drains and read when it starts."""
