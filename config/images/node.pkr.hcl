# The node image as an AMI or as a Glance image, both by node.sh:
#
#   packer init .                                               # the builders; not before Packer 1.7
#   packer build -only=amazon-ebs.node -var subnet=subnet-... .
#   packer build -only=openstack.node -var network=ID .         # with the variables OS_* of the project
#
# Each build makes a new image beside the older ones. With image = "name:slurm-node-*" (AWS) or "newest:slurm-node-*"
# (OpenStack) burstd takes it into use.

variable "packages" {
  description = "More packages of Debian's, such as a GPU driver."
  type        = string
  default     = ""
}

variable "region" {
  type    = string
  default = "eu-central-1"
}

variable "subnet" {
  description = "With a way to Debian's mirrors."
  type        = string
  default     = ""
}

variable "network" {
  description = "Id of a network with a way to Debian's mirrors."
  type        = string
  default     = ""
}

variable "flavor" {
  type    = string
  default = "m1.small"
}

variable "base_image" {
  description = "Name of Debian's image in Glance."
  type        = string
  default     = "debian-13"
}

source "amazon-ebs" "node" {
  region        = var.region
  subnet_id     = var.subnet
  instance_type = "m6i.large"
  ssh_username  = "admin"
  ami_name      = "slurm-node-{{isotime \"20060102-150405\"}}"
  tags          = { slurm = "24.11" }

  # Debian's own account: anybody may publish an AMI of this name.
  source_ami_filter {
    owners      = ["136693071363"]
    most_recent = true
    filters = {
      name                = "debian-13-amd64-*"
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
  }
}

source "openstack" "node" {
  image_name   = "slurm-node-{{isotime \"20060102-150405\"}}"
  flavor       = var.flavor
  networks     = [var.network]
  ssh_username = "debian"
  metadata     = { architecture = "x86_64", slurm = "24.11" }

  source_image_filter {
    most_recent = true
    filters {
      name = var.base_image
    }
  }
}

build {
  sources = ["source.amazon-ebs.node", "source.openstack.node"]

  provisioner "shell" {
    script           = "node.sh"
    environment_vars = ["NODE_PACKAGES=${var.packages}"]
    execute_command  = "sudo {{ .Vars }} sh '{{ .Path }}' machine"
  }
}
