from tests.api.conftest import backend, control, nobody, record, root, served, socket_path

__all__ = ["backend", "control", "nobody", "record", "root", "served", "socket_path"]
