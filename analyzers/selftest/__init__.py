"""How good the check is: planted faults, right kernels, and the usual rules on the very same cases."""
