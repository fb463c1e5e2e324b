"""Link 12: which containers hold GPUs, and what they may open."""
