"""Device profiles, and the simulated device."""
