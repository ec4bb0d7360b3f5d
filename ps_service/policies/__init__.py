"""When gradients count: the rounds of an optimizer, as a state machine without clock, network or torch."""
