"""A finder of one package, as an editable install adds it to `sys.meta_path`."""

from importlib.util import spec_from_file_location


class Editable:
    def __init__(self, package, folder):
        self.package = package
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        if name != self.package:
            return None
        return spec_from_file_location(name, self.folder / name / "__init__.py")
