#include "examples/communicator.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace backstay::example {
namespace {

// All exchanges use one: between two ranks they are matched in the order of the calls.
constexpr uint64_t kSlot = 0;

// Parts that lie one after another.
std::vector<Part> Consecutive(const std::vector<size_t>& sizes) {
  std::vector<Part> parts;
  size_t end = 0;
  for (const size_t size : sizes) {
    parts.push_back({end, end + size});
    end += size;
  }
  return parts;
}

std::vector<size_t> SizesInBytes(const std::vector<int64_t>& counts, size_t element_size_bytes) {
  std::vector<size_t> sizes;
  for (const int64_t count : counts) {
    sizes.push_back(static_cast<size_t>(count) * element_size_bytes);
  }
  return sizes;
}

// Gloo reports every trouble with a peer as an IoException; anything else is a mistake of ours and
// passes through.
template <typename Function>
void OrCommunicatorError(const std::string& doing, Function function) {
  try {
    function();
  } catch (const gloo::IoException& error) {
    throw CommunicatorError(doing + ": " + error.what());
  }
}

}  // namespace

Communicator::Communicator(gloo::rendezvous::Store& store, const std::string& prefix,
                           const Options& options)
    : options_(options), store_(prefix, store) {
  // Gloo writes to sockets whose peer may have died; without this the signal would take the
  // survivors with it.
  std::signal(SIGPIPE, SIG_IGN);
  OrCommunicatorError("meeting the other ranks under " + prefix, [&] {
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(options_.address.c_str()));
    auto context = std::make_shared<gloo::rendezvous::Context>(options_.rank, options_.world_size);
    context->setTimeout(options_.timeout);
    context->connectFullMesh(store_, device);
    context_ = std::move(context);
  });
}

Communicator::~Communicator() {
  try {
    WaitSent();  // The peers still need it.
  } catch (const CommunicatorError&) {
    // They are gone.
  }
}

void Communicator::Exchange(const std::string& doing, std::span<const char> out,
                            const std::vector<Part>& out_parts, std::span<char> in,
                            const std::vector<Part>& in_parts) {
  std::vector<char> bytes(out.begin(), out.end());
  const size_t self = rank();
  std::copy_n(bytes.begin() + out_parts[self].begin, out_parts[self].size(),
              in.begin() + in_parts[self].begin);
  try {
    OrCommunicatorError(doing, [&] {
      const auto received = context_->createUnboundBuffer(in.data(), in.size());
      auto sent = context_->createUnboundBuffer(bytes.data(), bytes.size());
      for (size_t distance = 1; distance < world_size(); ++distance) {
        const size_t to = (self + distance) % world_size();
        const size_t from = (self + world_size() - distance) % world_size();
        received->recv(static_cast<int>(from), kSlot, in_parts[from].begin, in_parts[from].size());
        sent->send(static_cast<int>(to), kSlot, out_parts[to].begin, out_parts[to].size());
      }
      for (size_t peer = 1; peer < world_size(); ++peer) received->waitRecv();
      WaitSent();
      sent_ = std::move(sent);
      sent_bytes_ = std::move(bytes);
    });
  } catch (const CommunicatorError&) {
    failed_ = true;
    throw;
  }
}

void Communicator::WaitSent() {
  if (!sent_ || failed_) return;
  OrCommunicatorError("sending", [&] {
    for (size_t peer = 1; peer < world_size(); ++peer) sent_->waitSend();
  });
  sent_.reset();
}

void Communicator::ReduceScatterMean(std::span<const float> values, std::span<float> mean_part) {
  const Part mine = PartOf(values.size(), rank(), world_size());
  std::vector<int64_t> counts(world_size());
  const std::vector<int64_t> received_counts(world_size(), static_cast<int64_t>(mine.size()));
  for (size_t peer = 0; peer < world_size(); ++peer) {
    counts[peer] = static_cast<int64_t>(PartOf(values.size(), peer, world_size()).size());
  }
  scratch_.resize(mine.size() * world_size());
  AllToAllBytes(values.data(), counts, scratch_.data(), received_counts, sizeof(float));
  const float scale = 1.0f / static_cast<float>(world_size());
  for (size_t i = 0; i < mine.size(); ++i) {
    float sum = 0;
    for (size_t peer = 0; peer < world_size(); ++peer) sum += scratch_[peer * mine.size() + i];
    mean_part[i] = sum * scale;
  }
}

void Communicator::AllGatherParts(std::span<float> values) {
  std::vector<size_t> sizes(world_size());
  for (size_t peer = 0; peer < world_size(); ++peer) {
    sizes[peer] = PartOf(values.size(), peer, world_size()).size() * sizeof(float);
  }
  const std::vector<Part> parts = Consecutive(sizes);
  const std::span<char> bytes(reinterpret_cast<char*>(values.data()), values.size_bytes());
  const Part mine = parts[rank()];
  const std::vector<Part> same_for_all(world_size(), {0, mine.size()});
  Exchange("allgather", bytes.subspan(mine.begin, mine.size()), same_for_all, bytes, parts);
}

std::vector<int64_t> Communicator::ExchangeCounts(const std::vector<int64_t>& counts) {
  const std::vector<int64_t> one_each(world_size(), 1);
  return AllToAll<int64_t>(counts, one_each, one_each);
}

double Communicator::Mean(double value) {
  double sum = 0;
  for (const double one : AllGather(value)) sum += one;
  return sum / static_cast<double>(world_size());
}

void Communicator::AllGatherBytes(const void* value, void* values, size_t value_size_bytes) {
  const std::vector<Part> same_for_all(world_size(), {0, value_size_bytes});
  const std::vector<size_t> sizes(world_size(), value_size_bytes);
  Exchange("allgather", {static_cast<const char*>(value), value_size_bytes}, same_for_all,
           {static_cast<char*>(values), value_size_bytes * world_size()}, Consecutive(sizes));
}

void Communicator::AllToAllBytes(const void* out, const std::vector<int64_t>& counts, void* in,
                                 const std::vector<int64_t>& received_counts,
                                 size_t element_size_bytes) {
  const std::vector<Part> out_parts = Consecutive(SizesInBytes(counts, element_size_bytes));
  const std::vector<Part> in_parts = Consecutive(SizesInBytes(received_counts, element_size_bytes));
  Exchange("all to all", {static_cast<const char*>(out), out_parts.back().end}, out_parts,
           {static_cast<char*>(in), in_parts.back().end}, in_parts);
}

void Communicator::Abort() { context_->closeConnections(); }

}  // namespace backstay::example
