"""Tools that a model calls over many turns: Python functions, servers over HTTP, MCP servers."""
