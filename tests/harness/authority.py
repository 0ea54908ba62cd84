"""Certificates for tests, made by the openssl program."""
import os
import subprocess


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


class Authority:
    """A certificate authority in a folder: ca.pem, and NAME.pem with NAME.key for what it signs."""

    def __init__(self, folder, name="ca"):
        self.folder, self.name = folder, name
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                f"/CN={name}", "-keyout", self.path("key", name), "-out", self.path("pem", name))

    def path(self, end, name):
        return os.path.join(self.folder, f"{name}.{end}")

    def sign(self, name, serial=1, names="DNS:localhost,IP:127.0.0.1", days=2):
        """(certificate, key); fewer than 0 days: expired."""
        request, extra = self.path("csr", name), self.path("ext", name)
        with open(extra, "w") as file:
            file.write(f"subjectAltName={names}\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}", "-keyout",
                self.path("key", name), "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.path("pem", self.name), "-CAkey", self.path("key", self.name),
                "-set_serial", str(serial), "-days", str(days), "-extfile", extra, "-out", self.path("pem", name))
        return self.path("pem", name), self.path("key", name)
