"""Links 8 to 10: the device plugin, what it registers, and its repair."""
