"""For the command ``openstack``, which is over before there is any garbage: to look for it is a quarter of its time."""

import atexit
import gc

gc.disable()
atexit.register(gc.freeze)
