"""`python -m tests.bench.tls_backend SCRIPT CERTIFICATE TLS_PORT …`: a fake backend that is reached
over TLS as well, on a port of its own. What follows are the script's own arguments."""

import runpy
import ssl
import sys
from typing import Any

import uvloop


def main() -> None:
    _, script, certificate, port, *rest = sys.argv
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    create: Any = uvloop.Loop.create_server

    async def create_both(loop: Any, factory: Any, host: str, *given: Any, **options: Any) -> Any:
        await create(loop, factory, host, int(port), ssl=context, **options)
        return await create(loop, factory, host, *given, **options)

    setattr(uvloop.Loop, "create_server", create_both)  # noqa: B010  mypy takes it for a method
    sys.argv = [script, *rest]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
