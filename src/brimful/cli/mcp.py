"""`brimful mcp`: the door for a coding agent."""

import asyncio

from brimful.errors import PartMissing


def mcp() -> int:
    """Answer a coding agent: predict, audit, check, request.

    Speaks the Model Context Protocol over standard input and output. Each tool returns what its
    verb prints with --json.
    """
    try:
        from brimful.cli.mcp_server import serve
    except ImportError as error:
        suggestion = "install it: pip install 'brimful[mcp]'"
        raise PartMissing("brimful mcp", error, suggestion) from error
    asyncio.run(serve())
    return 0
