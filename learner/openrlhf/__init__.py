"""From command lines written for OpenRLHF to ours: older names, and options honoured otherwise or not at all."""
