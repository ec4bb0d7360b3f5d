"""What serving takes: reads beside training, the way from a step to a reader, bytes of exports, and look-ups."""
