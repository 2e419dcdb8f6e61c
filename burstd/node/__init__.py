"""Proving a machine and making it a node of the cluster, over ssh or by the way in that its provider has.

The only room that imports paramiko.
The scripts beside the modules (``*.sh``) run on the machine; POSIX sh, coreutils and util-linux are all they need.
"""
