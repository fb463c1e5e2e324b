"""Device access of containers, asked and changed on the live node."""
