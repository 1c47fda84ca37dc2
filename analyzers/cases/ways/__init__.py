"""Ways of calling: once, several times, in parts, on another device index. One file each, found by its name."""
