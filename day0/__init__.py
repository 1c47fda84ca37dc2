"""day0: walk a newly released PyTorch model onto an accelerator it was never written for."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
