"""Messages on connections: frames, the order in which they are sent, buffers, and a connection inside one process."""
