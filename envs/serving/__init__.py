"""Environments over HTTP: a server of any of them, and the environment that is its client."""
