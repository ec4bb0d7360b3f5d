"""Messages on connections: frames, the order of sending, buffers, and a connection inside one process."""
