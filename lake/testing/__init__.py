"""Test helpers for projects: tables made from a few events, a check of their laws, and commands that are killed."""

from lake.testing.commands import CommandResult, Commands
from lake.testing.fault_injection import POINTS, Kill
from lake.testing.lakehouse import Lakehouse

__all__ = ["POINTS", "CommandResult", "Commands", "Kill", "Lakehouse"]
