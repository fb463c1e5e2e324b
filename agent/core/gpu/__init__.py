"""Links 1 to 5: PCI, the driver, device nodes, the fabric, NVML."""
