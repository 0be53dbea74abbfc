"""This machine from outside: host memory with cgroup limits, cores by affinity, shared memory, accelerators."""
