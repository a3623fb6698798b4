"""Benchmarks: ours and the peers in the same run, on the same inputs."""
