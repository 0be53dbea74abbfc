"""The part of brimful that enters other people's processes. Self-contained: the standard library
and torch alone, nothing of ``brimful``, Python 3.9 and newer. The parent puts it on the child's
path by itself (see ``bootstrap/sitecustomize.py``), so it works when brimful lives in another
environment."""


class Refused(RuntimeError):
    """The command cannot be tried as it is; the message says why, and what to do."""
