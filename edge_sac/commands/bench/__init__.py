"""The benchmarks: one module each, all measuring through resident processes that take turns.

The hard idea is the turn. Every candidate (ours, the floor under ours, a peer) is a process of its own that is built
once and then answers "work for this long" (`serve` there, `worker` here); only one works at a time, and `rounds` goes
round them, A B C A B C, so that whatever else the machine does meets all of them alike and ratios stay within a round.
"""
