"""Evidence bundles on disk."""
