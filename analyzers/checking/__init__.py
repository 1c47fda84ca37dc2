"""Cases run on a device: one at a time, guarded, in workers that may die."""
