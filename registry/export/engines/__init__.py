"""One file for each tested release of an engine, found by name; each is carried in the wheels made with it."""
