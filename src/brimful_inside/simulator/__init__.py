"""Arithmetic, standard library only: the caching allocator, traces and their replay, workspaces,
out-of-memory patterns."""
