#include "transport/tcp/grant_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <string>

#include "base/check.h"

namespace backstay::transport {

Proof ProveGrant(std::string_view key, ProofSide side, const Nonce& owner_nonce,
                 const Nonce& reader_nonce, GrantId grant) {
  std::string message = "backstay data plane 1";
  message.push_back(static_cast<char>(side));
  message.append(reinterpret_cast<const char*>(owner_nonce.data()), owner_nonce.size());
  message.append(reinterpret_cast<const char*>(reader_nonce.data()), reader_nonce.size());
  for (int i = 0; i < 8; ++i) message.push_back(static_cast<char>(grant >> (8 * i)));

  Proof proof;
  unsigned int proof_bytes = 0;
  const unsigned char* const made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &proof_bytes);
  BACKSTAY_CHECK(made != nullptr && proof_bytes == kProofBytes, "libcrypto has no HMAC-SHA256");
  return proof;
}

bool SameProof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace backstay::transport
