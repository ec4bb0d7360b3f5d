"""Parameters: the locks of readers and steps, and the autograd leaves that stand for parameters in a call."""
