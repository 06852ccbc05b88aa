#include "replication/token_digest.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace backstay::replication {

std::string TokenDigest(std::string_view token) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  const int done =
      EVP_Digest(token.data(), token.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
                 EVP_sha256(), nullptr);
  BACKSTAY_CHECK(done == 1, "SHA-256 is part of every OpenSSL");
  digest.resize(size);
  return digest;
}

}  // namespace backstay::replication
