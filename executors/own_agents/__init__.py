"""Executors of agents that are users' own: files for OpenRLHF, frameworks, commands, functions."""
