// A server's certificate and key, for tests, in a folder of their own. Included by one .c file a
// program.
#ifndef UNIT_NET_TLS_FILES_H
#define UNIT_NET_TLS_FILES_H

#include "harness/cmocka_all.h"
#include "net/tls.h"
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64], certificate_path[128], key_path[128];
static struct tls_files files = {certificate_path, key_path, ""};

// A self-signed certificate and its key.
static void write_files(long serial) {
  EVP_PKEY *key = EVP_EC_gen("P-256");
  X509 *certificate = X509_new();
  assert_non_null(key);
  assert_non_null(certificate);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  assert_int_equal(X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN",
                                              MBSTRING_ASC, (const unsigned char *)"localhost", -1,
                                              -1, 0),
                   1);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
  FILE *file = fopen(certificate_path, "w");
  assert_int_equal(PEM_write_X509(file, certificate), 1);
  fclose(file);
  file = fopen(key_path, "w");
  assert_int_equal(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
  fclose(file);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

static void make_folder(void) {
  snprintf(folder, sizeof folder, "/tmp/fw-test-tls-XXXXXX");
  assert_non_null(mkdtemp(folder));
  snprintf(certificate_path, sizeof certificate_path, "%s/server.pem", folder);
  snprintf(key_path, sizeof key_path, "%s/server.key", folder);
}

static void remove_folder(void) {
  unlink(certificate_path);
  unlink(key_path);
  rmdir(folder);
}

#endif
