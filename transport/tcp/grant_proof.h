#pragma once

#include <string_view>

#include "transport/tcp/frames.h"

namespace backstay::transport {

// Who proves. Part of the proof, so that one side's proof cannot be sent back as the other's.
enum class ProofSide : uint8_t { kReader = 1, kOwner = 2 };

// HMAC-SHA256 under the grant's key over "backstay data plane 1", side, owner's nonce, reader's
// nonce and grant id: good for one connection, one grant and one direction.
Proof ProveGrant(std::string_view key, ProofSide side, const Nonce& owner_nonce,
                 const Nonce& reader_nonce, GrantId grant);

// In time that does not depend on where they differ.
bool SameProof(const Proof& a, const Proof& b);

}  // namespace backstay::transport
