#include "tools/cli/shard_fetch.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace backstay::tools {

using transport::ChunkOutcome;

ShardFetch::ShardFetch(Executor* executor, transport::Puller* puller, FetchSpec spec, Done done)
    : executor_(executor),
      puller_(puller),
      spec_(std::move(spec)),
      deadline_(executor->Now() + spec_.timeout),
      done_(std::move(done)),
      sources_(spec_.sources.size()) {}

uint64_t ShardFetch::ChunkEnd(uint64_t chunk) const {
  return std::min(ChunkBegin(chunk + 1), spec_.manifest.size_bytes);
}

void ShardFetch::Start() {
  if (spec_.begin_bytes < spec_.end_bytes) {
    const uint64_t chunk_bytes = spec_.manifest.chunk_bytes;
    const uint64_t first = spec_.begin_bytes / chunk_bytes;
    const uint64_t end = CeilDiv(spec_.end_bytes, chunk_bytes);
    const uint64_t per_group = std::max<uint64_t>(1, kFetchGroupBytesMax / chunk_bytes);
    for (uint64_t chunk = first; chunk < end; chunk += per_group) {
      waiting_.push_back({chunk, std::min(per_group, end - chunk), {}});
    }
  }
  Step();
}

bool ShardFetch::CanGive(size_t source, const Group& group) const {
  return !sources_[source].failed && !group.tried.contains(source);
}

// Gives every source that has room the first group that it has not failed at.
void ShardFetch::Step() {
  if (executor_->Now() >= deadline_ && !waiting_.empty()) {
    Fail(DeadlineExceeded("the time was over when " + FormatBytes(bytes_done_) + " of " +
                          FormatBytes(spec_.end_bytes - spec_.begin_bytes) + " were read"));
  }
  if (!outcome_.status.ok()) waiting_.clear();  // Only what is under way is waited for.
  for (size_t source = 0; source < sources_.size() && outcome_.status.ok(); ++source) {
    while (sources_[source].in_flight < kFetchGroupsPerHolder) {
      const auto group = std::find_if(waiting_.begin(), waiting_.end(),
                                      [&](const Group& g) { return CanGive(source, g); });
      if (group == waiting_.end()) break;
      Group taken = std::move(*group);
      waiting_.erase(group);
      Pull(source, std::move(taken));
    }
  }
  for (const Group& group : waiting_) {
    bool hope = false;
    for (size_t source = 0; source < sources_.size(); ++source) {
      hope = hope || CanGive(source, group);
    }
    if (hope) continue;
    const std::string text =
        "chunk " + std::to_string(group.first_chunk) + " has no good copy on any holder";
    Fail(mismatch_seen_ ? Corrupt(text) : Unavailable(text));
    break;
  }
  FinishIfIdle();
}

void ShardFetch::Pull(size_t source, Group group) {
  ++in_flight_;
  ++sources_[source].in_flight;
  const uint64_t begin = ChunkBegin(group.first_chunk);
  const uint64_t last_chunk = group.first_chunk + group.chunk_count - 1;
  auto buffer = std::make_shared<std::vector<std::byte>>(ChunkEnd(last_chunk) - begin);
  transport::PullRequest request;
  request.source = spec_.sources[source];
  request.source_offset_bytes = begin;
  request.target = *buffer;
  request.chunk_bytes = spec_.manifest.chunk_bytes;
  const auto checksums = spec_.manifest.chunk_checksums.begin();
  request.expected.assign(checksums + static_cast<ptrdiff_t>(group.first_chunk),
                          checksums + static_cast<ptrdiff_t>(last_chunk + 1));
  request.deadline = std::min<Deadline>(deadline_, executor_->Now() + kFetchGroupTimeout);
  puller_->Pull(std::move(request),
                [this, source, group = std::move(group), buffer](transport::PullResult result) {
                  OnPulled(source, group, *buffer, result);
                });
}

void ShardFetch::OnPulled(size_t source, Group group, std::vector<std::byte>& buffer,
                          const transport::PullResult& result) {
  --in_flight_;
  --sources_[source].in_flight;
  const std::string& node = spec_.sources[source].owner.node.value;
  const uint64_t begin = ChunkBegin(group.first_chunk);
  uint64_t mismatches = 0;
  for (uint64_t i = 0; i < group.chunk_count; ++i) {
    const uint64_t chunk = group.first_chunk + i;
    const ChunkOutcome outcome =
        i < result.chunks.size() ? result.chunks[i] : ChunkOutcome::kNotRead;
    if (outcome == ChunkOutcome::kVerified) {
      Write(chunk, std::span(buffer).subspan(ChunkBegin(chunk) - begin,
                                             ChunkEnd(chunk) - ChunkBegin(chunk)));
      continue;
    }
    mismatches += outcome == ChunkOutcome::kMismatch ? 1 : 0;
    Group again{chunk, 1, group.tried};
    again.tried.insert(source);
    waiting_.push_front(std::move(again));
  }
  if (mismatches > 0) {
    mismatch_seen_ = true;
    outcome_.problems.push_back(node + " has " + std::to_string(mismatches) +
                                " bad chunks from chunk " + std::to_string(group.first_chunk) +
                                " on");
  }
  if (!result.status.ok() && !sources_[source].failed) {
    sources_[source].failed = true;
    outcome_.problems.push_back(node + ": " + result.status.ToString());
  }
  Step();
}

void ShardFetch::Write(uint64_t chunk, std::span<const std::byte> bytes) {
  const uint64_t begin = std::max(ChunkBegin(chunk), spec_.begin_bytes);
  const uint64_t end = std::min(ChunkEnd(chunk), spec_.end_bytes);
  const Status written =
      spec_.write(begin - spec_.begin_bytes, bytes.subspan(begin - ChunkBegin(chunk), end - begin));
  if (!written.ok()) return Fail(written);
  bytes_done_ += end - begin;
  if (spec_.on_progress) spec_.on_progress(bytes_done_);
}

void ShardFetch::Fail(Status status) {
  if (outcome_.status.ok()) outcome_.status = std::move(status);
  waiting_.clear();
}

void ShardFetch::FinishIfIdle() {
  if (in_flight_ > 0 || !waiting_.empty() || !done_) return;
  executor_->Post([done = std::exchange(done_, nullptr), outcome = outcome_] { done(outcome); });
}

}  // namespace backstay::tools
