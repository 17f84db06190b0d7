"""The HTTP service: the streams of a home for other machines, languages and processes.

| name | does |
|---|---|
| `serve` | runs a service and a controller until the process is told to end: `floodmark serve` |
| `Service` | a service in a thread, for tests and for programs that bring their own main loop |
| `create_app`, `App` | the application alone, for an ASGI server of your own |
| `ServiceLimits`, `Tls` | what a service takes at most, and how it proves who it is |

`floodmark.connect("http://...")` is the same home over it. Everything under /v1 is described by /v1/openapi.json.
"""

from floodmark.service.app import App, create_app
from floodmark.service.context import ServiceLimits
from floodmark.service.server import Service, Tls, serve

__all__ = ["App", "Service", "ServiceLimits", "Tls", "create_app", "serve"]
