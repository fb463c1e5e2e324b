"""NVML and CUDA probe programs."""
