#!/bin/sh
# Makes a node image of a Debian system. The one recipe of AMIs and Glance images (node.pkr.hcl) and of containers
# (Containerfile). Run it as root in the image, with the network:
#
#   sh node.sh machine      an image that a virtual machine boots from
#   sh node.sh container    an image for pods
#
# NODE_PACKAGES: more packages of Debian's. Begin with the release whose Slurm slurmctld runs. Nothing secret gets into
# the image. docs/admin.md has what a node image must contain.
set -eu

kind=${1:-}
packages="slurmd slurm-client munge python3 ca-certificates"
case $kind in
    machine) packages="$packages cloud-init openssh-server chrony sssd-ldap libnss-sss libpam-sss sshfs" ;;
    container) packages="$packages libnss-wrapper" ;;
    *)
        echo "usage: node.sh machine|container" >&2
        exit 2
        ;;
esac

export DEBIAN_FRONTEND=noninteractive
apt-get update
# shellcheck disable=SC2086 # a list of words
apt-get install --yes --no-install-recommends $packages ${NODE_PACKAGES:-}
slurmd -V

# burstd brings the key of munge and starts both, after it has validated the machine.
rm -f /etc/munge/munge.key
if [ "$kind" = machine ]; then
    # Without systemd nothing starts them at boot.
    if command -v systemctl >/dev/null; then systemctl disable slurmd munge; fi
    rm -f /etc/ssh/ssh_host_* /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys
    cloud-init clean --logs
    # Google's guest agent would make host keys of its own, after cloud-init has written its to the console.
    if command -v google_guest_agent >/dev/null; then
        printf '[InstanceSetup]\nset_host_keys = false\n' >>/etc/default/instance_configs.cfg
    fi
    : >/etc/machine-id
fi
apt-get clean
rm -rf /var/lib/apt/lists/*
