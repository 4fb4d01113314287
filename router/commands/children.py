"""The children of `router up`, with their failures as a person is told of them."""

from router.commands.client import CommandFailed
from router.commands.fleet_of_one import failure
from serving.processes.child_server import ChildServer


class Child(ChildServer):
    """A router or a node agent."""

    def wait_until_listening(self, timeout_s: float) -> str:
        """Returns the URL that the child printed. Raises `CommandFailed` with its last lines."""
        try:
            url = self.until_listening(timeout_s)
        except TimeoutError as error:
            raise CommandFailed(f"{error}.") from None
        if url is None:
            raise self.failed()
        return url

    def failed(self) -> CommandFailed:
        """Returns an error that explains why the child ended."""
        return CommandFailed(failure(self.name, self.last_words()))
