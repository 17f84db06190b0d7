"""The HTTP service: the streams of a home for other machines and languages.

| name | does |
|---|---|
| `serve` | runs a service and a controller until SIGTERM or SIGINT: `floodmark serve` |
| `Service` | a service in a thread, for tests and for programs with their own main loop |
| `create_app`, `App` | the ASGI application alone, for your own server |
| `ServiceLimits`, `Tls` | the limits of a service, and its certificate |

Only `floodmark.cli` imports it. Start reading with `app`, then `routes`. `floodmark.connect("http://...")` is the
client; /v1/openapi.json describes the API.
"""

from floodmark.service.app import App, create_app
from floodmark.service.context import ServiceLimits
from floodmark.service.server import Service, Tls, serve

__all__ = ["App", "Service", "ServiceLimits", "Tls", "create_app", "serve"]
