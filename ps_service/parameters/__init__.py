"""The locks between readers and steps of parameters, and the autograd leaves that replace parameters in a call."""
