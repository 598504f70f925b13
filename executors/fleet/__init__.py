"""Engines with their episodes in processes of their own, and how the driver keeps them alive."""
