"""Errors that end a command before it begins its work."""


class CannotStart(Exception):
    """The command cannot start; the message is a sentence for people."""
