#include "transport/tcp/grant_proof.h"

#include <gtest/gtest.h>

#include <string>

namespace backstay::transport {
namespace {

const std::string kKey(kGrantKeyBytes, 'k');

Nonce NonceOf(int value) {
  Nonce nonce;
  nonce.fill(static_cast<std::byte>(value));
  return nonce;
}

TEST(GrantProof, IsTheSameForTheSameAndAnotherForAnythingElse) {
  const Proof proof = ProveGrant(kKey, ProofSide::kReader, NonceOf(1), NonceOf(2), 3);
  EXPECT_TRUE(SameProof(proof, ProveGrant(kKey, ProofSide::kReader, NonceOf(1), NonceOf(2), 3)));
  const std::string other_key(kGrantKeyBytes, 'x');
  EXPECT_FALSE(
      SameProof(proof, ProveGrant(other_key, ProofSide::kReader, NonceOf(1), NonceOf(2), 3)));
  EXPECT_FALSE(SameProof(proof, ProveGrant(kKey, ProofSide::kOwner, NonceOf(1), NonceOf(2), 3)))
      << "a proof could be sent back to its maker";
  EXPECT_FALSE(SameProof(proof, ProveGrant(kKey, ProofSide::kReader, NonceOf(9), NonceOf(2), 3)))
      << "a proof could be used on another connection";
  EXPECT_FALSE(SameProof(proof, ProveGrant(kKey, ProofSide::kReader, NonceOf(1), NonceOf(9), 3)));
  EXPECT_FALSE(SameProof(proof, ProveGrant(kKey, ProofSide::kReader, NonceOf(1), NonceOf(2), 4)));
}

TEST(GrantProof, DiffersWhereverOneByteDoes) {
  const Proof proof = ProveGrant(kKey, ProofSide::kReader, NonceOf(1), NonceOf(2), 3);
  for (size_t i = 0; i < proof.size(); ++i) {
    Proof other = proof;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(SameProof(proof, other)) << i;
  }
}

}  // namespace
}  // namespace backstay::transport
