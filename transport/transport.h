#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/status.h"

namespace backstay::transport {

using GrantId = uint64_t;

// Permission to read one region of one node's memory. Travels inside control messages; whoever
// holds it can read the region until the grant has ended, and nothing else.
struct Grant {
  GrantId id = 0;
  NodeInstance owner;
  std::string address;  // Data address of the owner, "host:port" for TCP.
  std::string
      key;  // kGrantKeyBytes secret bytes, proven on the data connection, never sent over it.
  uint64_t size_bytes = 0;  // Readable range is [0, size_bytes).
};

inline constexpr size_t kGrantKeyBytes = 32;

// A piece of memory to read.
struct Region {
  std::span<const std::byte> bytes;
};

// What came of one chunk of a pull.
enum class ChunkOutcome : uint8_t {
  kNotRead,   // The pull ended before it.
  kVerified,  // In the target, and its hash is the expected one.
  kMismatch,  // Read, but its hash differs: rewritten since, or damaged. Counts against the replica
              // only when the pull ended ok: then the grant was still valid after the read.
};

// A contiguous run of chunks to read and verify.
struct PullRequest {
  Grant source;
  uint64_t source_offset_bytes = 0;  // A multiple of chunk_bytes.
  std::span<std::byte>
      target;  // Borrowed until the completion has run. Only its last chunk may be short.
  uint32_t chunk_bytes = 0;
  std::vector<Hash128>
      expected;  // One for each chunk of the target, in order. Empty: take `hashes` as found.
  Deadline deadline = kNoDeadline;
};

struct PullResult {
  Status status;  // Ok when every chunk was read (verified or mismatching). Else why it ended.
  std::vector<ChunkOutcome> chunks;  // One for each chunk, also after an error.
  std::vector<Hash128> hashes;       // One for each chunk; zero where none was read.
};

using PullCompletion = std::function<void(PullResult)>;
using PullId = uint64_t;

// Reads granted remote ranges into local memory; verbs, TCP and the simulation all obey this
// (tests/contract/pull).
//
// Thread:  every method and every completion runs on the owning executor.
// Memory:  borrows `target` until its completion has run, also after cancel or deadline: the
//          completion runs only when the transport can no longer write there.
// Failure: kStale when the grant has ended, kUnavailable when the peer is gone, kDeadline when the
//          deadline passed, kPermission when the key was not accepted, kInvalidArgument for a range
//          outside of the grant. A failed pull may have written part of `target`. Destroying the
//          puller ends all pulls (kUnavailable); their completions run on the executor afterwards,
//          so it must outlive them.
class Puller {
 public:
  virtual ~Puller() = default;

  // Starts a pull. Runs `done` exactly once, never before Pull() returns.
  virtual PullId Pull(PullRequest request, PullCompletion done) = 0;
  // Ends a pull early; its completion still runs (kUnavailable, "cancelled"). An ended pull is
  // ignored.
  virtual void Cancel(PullId id) = 0;
  // Tells the owner that this node will not read under `grant` again. Best effort; the owner can
  // always revoke.
  virtual void Release(const Grant& grant) = 0;
};

// Lets peers read regions of this node's memory.
//
// Thread:  the owning executor.
// Memory:  a region must stay mapped and unchanged (or, unsealed, at least mapped) until its grant
//          has *ended*: the moment `on_ended` runs. Destroying the exporter ends all grants.
class Exporter {
 public:
  virtual ~Exporter() = default;

  // A grant to read `region`. It ends by the reader's release or by Revoke(); at `expiry` it is
  // revoked. `on_ended` runs exactly once, when no byte of the region can be read on behalf of this
  // grant any more: no connection, retransmission or socket buffer refers to it.
  virtual Grant Export(Region region, Deadline expiry, std::function<void()> on_ended) = 0;
  // Starts to end a grant; reads under it get kStale. An ended grant is ignored.
  virtual void Revoke(GrantId id) = 0;
};

}  // namespace backstay::transport
