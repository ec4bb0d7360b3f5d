"""What connections over sockets share: records, the socket, reading, writing and delivery."""
