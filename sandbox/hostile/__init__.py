"""Hostile and broken programs as data, with what a sandbox must show for each."""

from . import disk, endless, exits, filesystem, introspection, kernel, memory, network, output, privileges, processes
from .program import HostileProgram

_MODULES = (endless, memory, processes, privileges, introspection, kernel, filesystem, disk, network, output, exits)

HOSTILE: dict[str, HostileProgram] = {program.name: program for module in _MODULES for program in module.PROGRAMS}
