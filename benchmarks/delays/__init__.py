"""Throughput of passes over a link with delay and limited rate, against what that link allows.

link     a link between two network namespaces: delay and rate, in a process of this project
host     an owner or a trainer in a namespace of its own
"""
