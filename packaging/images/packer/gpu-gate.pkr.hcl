# Merge this into your own template: two provisioners for a build{} whose sources are Debian or Ubuntu.
# Make it the last provisioner: the build machine is running, and a later step could create state again.
variable "gpu_gate_deb" {
  type        = string
  description = "Path of gpu-gate_VERSION_all.deb, as make deb prints it"
}

build {
  sources = []

  provisioner "file" {
    sources     = [var.gpu_gate_deb, "packaging/images/install"]
    destination = "/tmp/"
  }

  provisioner "shell" {
    execute_command = "sudo sh -c '{{ .Vars }} {{ .Path }}'"
    inline = [
      "sh /tmp/install --seal /tmp/gpu-gate_*_all.deb",
      "rm /tmp/install /tmp/gpu-gate_*_all.deb",
    ]
  }
}
