#pragma once

#include <gloo/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace backstay::example {

// A peer is gone or silent. Nothing more can be done in this group of ranks; a new one must be
// made.
struct CommunicatorError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Part `index` of `count` nearly equal parts of [0, size).
struct Part {
  size_t begin;
  size_t end;

  size_t size() const { return end - begin; }
};
constexpr Part PartOf(size_t size, size_t index, size_t count) {
  return {size * index / count, size * (index + 1) / count};
}

// One group of ranks, over Gloo's TCP transport. Sums are taken in rank order, so they repeat bit
// for bit.
//
// Gloo moves the bytes, but the exchange is ours, because of how Gloo's collectives end when a peer
// dies. They wait for their sends, and the Gloo of 2022 wakes those who wait to receive from a dead
// peer, but not those who have bytes for it queued: such a survivor would wait for its timeout, and
// with it the whole recovery. So a rank waits for what it receives, and for what it has sent only
// when the next bytes of the same peers are there: a peer that has sent them has read the last.
//
// Thread:  one at a time.
// Memory:  borrows the arguments during the call.
// Failure: every collective throws CommunicatorError when a peer dies or stays silent beyond the
//          timeout; outputs are then undefined, and only Abort() and the destructor may follow.
class Communicator {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    std::string address = "127.0.0.1";  // Where to listen; peers reach this rank there.
    std::chrono::milliseconds timeout{
        10000};  // Of connecting to each peer, and of each collective.
  };

  // Meets the other ranks under `prefix` in `store`, which must outlive the communicator.
  Communicator(gloo::rendezvous::Store& store, const std::string& prefix, const Options& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  size_t rank() const { return static_cast<size_t>(options_.rank); }
  size_t world_size() const { return static_cast<size_t>(options_.world_size); }
  // The part of the rendezvous store that only this group uses.
  gloo::rendezvous::Store& store() { return store_; }

  // The mean over the ranks of part PartOf(values.size(), rank(), world_size()) of everybody's
  // `values`.
  void ReduceScatterMean(std::span<const float> values, std::span<float> mean_part);
  // Every rank's PartOf(values.size(), ...), in place: this rank's is read, the others' are
  // written.
  void AllGatherParts(std::span<float> values);
  // Sends counts[r] elements of `out` to rank r, which come one after another in rank order;
  // returns what the others sent here, in rank order, and in `received_counts` how many came from
  // each.
  template <typename T>
  std::vector<T> AllToAll(std::span<const T> out, const std::vector<int64_t>& counts,
                          const std::vector<int64_t>& received_counts) {
    int64_t received = 0;
    for (const int64_t count : received_counts) received += count;
    std::vector<T> in(static_cast<size_t>(received));
    AllToAllBytes(out.data(), counts, in.data(), received_counts, sizeof(T));
    return in;
  }
  // One number to and from each rank.
  std::vector<int64_t> ExchangeCounts(const std::vector<int64_t>& counts);
  // Every rank's value, in rank order.
  template <typename T>
  std::vector<T> AllGather(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::vector<T> values(world_size());
    AllGatherBytes(&value, values.data(), sizeof(T));
    return values;
  }
  // The mean over the ranks.
  double Mean(double value);

  // Closes all connections, so that no peer waits for this rank any longer.
  void Abort();

 private:
  // Sends out[out_parts[r]] to rank r and receives in[in_parts[r]] from it, in bytes.
  void Exchange(const std::string& doing, std::span<const char> out,
                const std::vector<Part>& out_parts, std::span<char> in,
                const std::vector<Part>& in_parts);
  void WaitSent();
  void AllToAllBytes(const void* out, const std::vector<int64_t>& counts, void* in,
                     const std::vector<int64_t>& received_counts, size_t element_size_bytes);
  void AllGatherBytes(const void* value, void* values, size_t value_size_bytes);

  const Options options_;
  gloo::rendezvous::PrefixStore store_;
  std::shared_ptr<gloo::Context> context_;
  std::vector<float> scratch_;
  std::vector<char> sent_bytes_;  // Of the last exchange; `sent_` borrows it.
  std::unique_ptr<gloo::transport::UnboundBuffer> sent_;
  bool failed_ = false;  // A peer is lost: nothing that was sent is waited for any more.
};

}  // namespace backstay::example
