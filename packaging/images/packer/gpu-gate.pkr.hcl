# To be merged into a template of your own: two provisioners for a build{} whose sources are Debian or Ubuntu.
# The last provisioner of all, since what comes later would be learned again: the build machine runs.
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
