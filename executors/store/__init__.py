"""Trajectories on disk."""
