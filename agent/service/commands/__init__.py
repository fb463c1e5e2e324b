"""One verb of the command line a file."""
