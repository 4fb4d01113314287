"""The files of the disk tier, their parents, and their order of eviction. No I/O."""

from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Item:
    """A file on disk, or one that is to be written."""

    file: int
    kind: str
    parent_file: int
    """0 for none. Smaller than `file`: a file is numbered after its parent."""
    nbytes: int
    checksum: int = 0
    used: int = 0
    """Logical time of the last use; rises with each use of any file."""
    on_disk: bool = False
    children: set[int] = field(default_factory=set)


class Catalog:
    """The files, least recently used first."""

    def __init__(self) -> None:
        self._items: OrderedDict[int, Item] = OrderedDict()
        self._clock = 0
        self.nbytes = 0
        """Bytes of the files on disk."""
        self.files = 0
        """Number of files on disk."""

    def __contains__(self, file: int) -> bool:
        return file in self._items

    def get(self, file: int) -> Item | None:
        return self._items.get(file)

    def restore(self, items: Iterable[Item]) -> None:
        """Adds the files of an earlier process, with their parents, to an empty catalog."""
        for item in sorted(items, key=lambda item: (item.used, -item.file)):
            self._items[item.file] = item
            self._clock = item.used
            self._count(item, 1)
        for item in self._items.values():
            self._adopt(item)

    def add(self, item: Item) -> None:
        """Adds a file to be written, as the most recently used. Its parent must be in the
        catalog."""
        self._clock += 1
        item.used = self._clock
        self._items[item.file] = item
        self._adopt(item)

    def written(self, item: Item, checksum: int) -> None:
        item.checksum = checksum
        item.on_disk = True
        self._count(item, 1)

    def touch(self, files: Iterable[int]) -> dict[int, int]:
        """Marks files as used; returns the new `used` of those in the catalog."""
        self._clock += 1
        used = {}
        # A parent has a smaller number than its children, so it becomes more recently used.
        for file in sorted(files, reverse=True):
            item = self._items.get(file)
            if item is not None:
                item.used = used[file] = self._clock
                self._items.move_to_end(file)
        return used

    def coldest(self, busy: Container[int]) -> Item | None:
        """Returns the least recently used file on disk without children, except those in `busy`."""
        for item in self._items.values():
            if item.on_disk and not item.children and item.file not in busy:
                return item
        return None

    def remove(self, file: int) -> list[Item]:
        """Removes the file and all that continue it; returns them, children first."""
        found = [self._items[file]]
        for item in found:
            found.extend(self._items[child] for child in item.children)
        for item in found:
            del self._items[item.file]
            if item.on_disk:
                self._count(item, -1)
        parent = self._items.get(found[0].parent_file)
        if parent is not None:
            parent.children.discard(file)
        return found[::-1]

    def clear(self) -> None:
        self._items.clear()
        self.nbytes = self.files = 0

    def _adopt(self, item: Item) -> None:
        if item.parent_file:
            self._items[item.parent_file].children.add(item.file)

    def _count(self, item: Item, sign: int) -> None:
        self.nbytes += sign * item.nbytes
        self.files += sign
