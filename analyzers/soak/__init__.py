"""A soak: sequences come and go for a while, and nothing may leak, drift, or become wrong."""
