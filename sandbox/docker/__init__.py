"""Sandboxes in Docker containers: one hardened container for each program or session."""
