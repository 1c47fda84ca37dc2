"""The parts of the recorder: keys, names of functions, costs, rows, what the host waits for."""
