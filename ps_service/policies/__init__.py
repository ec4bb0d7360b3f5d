"""When gradients count: the rounds of an optimizer, as state machines without clock, network, torch or locks."""
