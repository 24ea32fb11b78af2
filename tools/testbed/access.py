"""Access to a testbed's API server: certificates, tokens, kubeconfigs, requests."""

from __future__ import annotations

import csv
import io
import json
import secrets
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.testbed.process import run

ADMIN = "admin"
SCHEDULER = "system:kube-scheduler"
CONTROLLER = "system:kube-controller-manager"


class ApiError(RuntimeError):
    """The API server refused a request; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


def certificates(folder: Path, names: Sequence[str], addresses: Sequence[str]) -> None:
    """Create an authority (``ca.crt``), a server's certificate, and the key of service accounts.

    Parameters
    ----------
    folder : Path
        Folder of ``ca.crt``, ``server.crt``, ``server.key`` and ``accounts.key``.
    names, addresses : sequence of str
        Names and addresses of the server.
    """
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    alternatives = ",".join(
        [*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)]
    )
    ca, ca_key = str(folder / "ca.crt"), str(folder / "ca.key")
    run(
        "openssl", "req", "-x509", *key, "-keyout", ca_key, "-out", ca, "-days", "365",
        "-subj", "/CN=testbed", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    request, extensions = folder / "server.csr", folder / "server.ext"
    extensions.write_text(
        f"subjectAltName={alternatives}\nextendedKeyUsage=serverAuth\nkeyUsage=digitalSignature\n"
        "basicConstraints=CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    run(
        "openssl", "req", *key, "-keyout", str(folder / "server.key"), "-out", str(request),
        "-subj", "/CN=kube-apiserver",
    )  # fmt: skip
    run(
        "openssl", "x509", "-req", "-in", str(request), "-CA", ca, "-CAkey", ca_key, "-days", "365",
        "-CAcreateserial", "-out", str(folder / "server.crt"), "-extfile", str(extensions),
    )  # fmt: skip
    # With -noout, because Go can't read an EC key after a block of parameters.
    run(
        "openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout",
        "-out", str(folder / "accounts.key"),
    )  # fmt: skip


class Access:
    """Creates users with tokens and kubeconfigs, and sends requests as a user.

    Parameters
    ----------
    folder : Path
        Folder of certificates, ``tokens.csv`` and kubeconfigs.
    url : str
        URL of the API server.
    users : mapping of str to sequence of str
        Groups of each user.
    """

    def __init__(self, folder: Path, url: str, users: Mapping[str, Sequence[str]]) -> None:
        self.folder, self.url = folder, url
        self.tokens = {name: secrets.token_hex(16) for name in users}
        text = io.StringIO()
        writer = csv.writer(text)
        for name, groups in users.items():
            writer.writerow([self.tokens[name], name, name, ",".join(groups)])
        self.file = folder / "tokens.csv"
        self.file.write_text(text.getvalue())
        self.file.chmod(0o600)
        self.certificate = folder / "ca.crt"
        self._context: ssl.SSLContext | None = None

    def kubeconfig(self, user: str) -> Path:
        """Return the kubeconfig of a user."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        return path if path.exists() else self.write(path, user, self.tokens[user])

    def write(self, path: Path, user: str, token: str) -> Path:
        """Write the kubeconfig for a token."""
        # As JSON, which is also valid YAML.
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "testbed",
            "clusters": [
                {
                    "name": "testbed",
                    "cluster": {
                        "server": self.url,
                        "certificate-authority": str(self.certificate),
                    },
                }
            ],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
        }
        path.touch(0o600)
        path.write_text(json.dumps(content, indent=1))
        return path

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        user: str = ADMIN,
        kind: str = "application/json",
        timeout: float = 30.0,
    ) -> Any:
        """Send a request as a user; return the response, parsed if it is JSON.

        ``kind`` is the content type of ``body``; patches have their own. Raises `ApiError` if the
        response is an error, and `OSError` without a response.
        """
        if self._context is None:
            self._context = ssl.create_default_context(cafile=str(self.certificate))
        content = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.tokens[user]}", "Content-Type": kind}
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._context)
        )
        try:
            with opener.open(request, timeout=timeout) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, error.read().decode(errors="replace").strip()) from None
        try:
            return json.loads(text)
        except ValueError:
            return text.decode(errors="replace")
