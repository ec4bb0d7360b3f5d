"""Attacks over HTTP."""

from __future__ import annotations

from itertools import product

import aiohttp
from yarl import URL

from ps_service.monitoring.paths import PATHS
from tests.attack.attack import attack
from tests.attack.scene import Scene

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")
ODD_PATHS = (
    *("/none", "//", "//status.json", "/./metrics", "/metrics/", "/%6detrics", "/static/../metrics", "/status.json;x"),
    *("/static/%2e%2e/%2e%2e/paths.py", "/static/..%2fpaths.py", "/static//etc/passwd", "/static/%00", "/STATUS.JSON"),
    *("/static/....//paths.py", "/static/..\\paths.py", "/healthz/../status.json", "/healthz/..%2fstatus.json"),
    *("/api/status", "/status", "/ws", "/metrics?x=/healthz", "/" + "a" * 7000),
)
OPEN = ("/healthz", "/readyz", "/static/page.css")


@attack(
    "asks for every path, and for paths with tricks, by every method, without a token",
    "only the probes and the styles are answered",
    quick=True,
)
async def ask_over_http_without_a_token(at: Scene) -> None:
    paths = [each.replace("{name}", "page.css") for each in PATHS]
    async with aiohttp.ClientSession() as http:
        for method, path in product(METHODS, (*paths, *ODD_PATHS)):
            at.tried += 1
            url = URL(at.server.http_url + path, encoded=True)
            try:
                async with http.request(method, url) as answer:
                    status = answer.status
            except aiohttp.ClientError:
                continue
            is_open = path in OPEN and method in ("GET", "HEAD")
            refusals = (400, 401, 405, 414, *([404] if path.startswith("/static/") else []))
            at.hold(is_open or status in refusals, f"{method} {path[:40]}: {status}")
            at.hold(not is_open or status == 200, f"{method} {path} is not answered: {status}")


@attack(
    "asks with Host and Origin of other sites (DNS rebinding), in all odd forms, with a token",
    "each is refused, and no answer allows another origin",
    quick=True,
)
async def rebind_a_name(at: Scene) -> None:
    port = at.server.http_address.rpartition(":")[2]
    token = {"authorization": f"Bearer {at.identities.tokens['reader']}"}
    hosts = ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", f"localhost.evil:{port}", "")
    hosts = (*hosts, f"127.0.0.1:{port}@evil.example", f"evil.example#127.0.0.1:{port}", f"0.0.0.0.nip.io:{port}")
    origins = ("http://evil.example", "null", "file://", f"http://127.0.0.1.evil.example:{port}", "http://127.0.0.1:1")
    origins = (*origins, f"http://evil.example@127.0.0.1:{port}", f"http://127.0.0.1:{port}.evil.example")
    async with aiohttp.ClientSession() as http:
        for path in ("/", "/status.json", "/messages", "/static/page.css", "/none"):
            for headers in (*({"host": each} for each in hosts), *({"origin": each} for each in origins)):
                at.tried += 1
                async with http.get(at.server.http_url + path, headers=token | headers) as answer:
                    at.hold(answer.status in (400, 401, 403), f"{path} with {headers}: {answer.status}")
                    allowed = [each for each in answer.headers if each.lower().startswith("access-control")]
                    at.hold(not allowed, f"{path} with {headers}: {allowed}")


@attack(
    "sends the token of an admin over HTTP in every form that is no header of its own, and other methods with it",
    "none lets in, and a token changes nothing",
    quick=True,
)
async def send_a_token_over_http_in_odd_forms(at: Scene) -> None:
    token = at.identities.tokens["admin"]
    bearer = f"Bearer {token}"
    forms = (
        *([("authorization", each)] for each in (token, f"Token {token}", f"Basic {token}", f"Bearer  {token}x", "")),
        [("authorization", bearer), ("authorization", bearer)],
        [("authorization", f"{bearer}, {bearer}")],
        *(
            [(name, bearer)]
            for name in ("cookie", "x-authorization", "proxy-authorization", "x-forwarded-authorization")
        ),
        [("cookie", f"authorization={bearer}; token={token}; session={token}")],
        [("x-forwarded-for", "127.0.0.1"), ("x-real-ip", "127.0.0.1"), ("x-forwarded-user", "admin")],
        [("x-http-method-override", "DELETE"), ("x-original-url", "/healthz"), ("x-rewrite-url", "/healthz")],
    )
    async with aiohttp.ClientSession() as http:
        for headers, path in product(forms, ("/", "/status.json", "/metrics", "/messages", f"/metrics?token={token}")):
            at.tried += 1
            async with http.get(at.server.http_url + path, headers=headers) as answer:
                at.hold(answer.status == 401, f"{path} with {str(headers)[:60]}: {answer.status}")
        for method in METHODS[2:]:
            at.tried += 1
            try:
                async with http.request(method, at.server.http_url, headers={"authorization": bearer}) as answer:
                    at.hold(answer.status in (400, 404, 405), f"{method} with a token: {answer.status}")
            except aiohttp.ClientError:
                continue
