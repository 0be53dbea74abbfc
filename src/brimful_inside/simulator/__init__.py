"""Pure laws, standard library only: the caching allocator, traces of it, workspaces, the faces of out-of-memory."""
