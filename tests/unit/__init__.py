"""Model and core: values in, values out. No fixture, no patching."""
