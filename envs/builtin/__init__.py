"""Environments that come with TurnGym."""
