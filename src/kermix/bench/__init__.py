"""Benchmarks: each one a module that runs ours and the peers on the same inputs."""
