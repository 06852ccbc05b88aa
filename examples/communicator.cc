#include "examples/communicator.h"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/alltoallv.h>
#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <csignal>

namespace backstay::example {
namespace {

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

Communicator::~Communicator() = default;

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
  std::vector<size_t> counts(world_size());
  for (size_t peer = 0; peer < world_size(); ++peer) {
    counts[peer] = PartOf(values.size(), peer, world_size()).size();
  }
  const Part mine = PartOf(values.size(), rank(), world_size());
  scratch_.assign(values.begin() + mine.begin, values.begin() + mine.end);
  OrCommunicatorError("allgather", [&] {
    gloo::AllgathervOptions options(context_);
    options.setInput(scratch_.data(), scratch_.size());
    options.setOutput(values.data(), counts);
    gloo::allgatherv(options);
  });
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

void Communicator::AllGatherBytes(void* value, void* values, size_t value_size_bytes) {
  OrCommunicatorError("allgather", [&] {
    gloo::AllgatherOptions options(context_);
    options.setInput(static_cast<char*>(value), value_size_bytes);
    options.setOutput(static_cast<char*>(values), value_size_bytes * world_size());
    gloo::allgather(options);
  });
}

void Communicator::AllToAllBytes(const void* out, const std::vector<int64_t>& counts, void* in,
                                 const std::vector<int64_t>& received_counts,
                                 size_t element_size_bytes) {
  // Gloo counts in elements of a type; bytes keep this function free of one.
  std::vector<int64_t> out_bytes = counts;
  std::vector<int64_t> in_bytes = received_counts;
  for (int64_t& count : out_bytes) count *= static_cast<int64_t>(element_size_bytes);
  for (int64_t& count : in_bytes) count *= static_cast<int64_t>(element_size_bytes);
  OrCommunicatorError("all to all", [&] {
    gloo::AlltoallvOptions options(context_);
    // Gloo takes no pointer to const, but only reads its input.
    options.setInput(static_cast<char*>(const_cast<void*>(out)), out_bytes);
    options.setOutput(static_cast<char*>(in), in_bytes);
    gloo::alltoallv(options);
  });
}

void Communicator::Abort() { context_->closeConnections(); }

}  // namespace backstay::example
