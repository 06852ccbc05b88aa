#include "replication/peer_router.h"

#include <memory>
#include <utility>

#include "replication/wire_convert.h"

namespace backstay::replication {
namespace {

// What only a leader sends.
bool IsLeaders(wire::Request::BodyCase kind) {
  switch (kind) {
    case wire::Request::kReserve:
    case wire::Request::kJobState:
    case wire::Request::kInventory:
    case wire::Request::kReplicate:
      return true;
    default:
      return false;
  }
}

// What changes something at its receiver in the name of a generation. Reading never does; and the
// ways into a new generation (admission, reconfiguration, fences) come from trainers that are still
// in an older one or in none.
bool IsFenced(wire::Request::BodyCase kind) {
  switch (kind) {
    case wire::Request::kOffer:
    case wire::Request::kAck:
    case wire::Request::kReportShards:
      return true;
    default:
      return IsLeaders(kind);
  }
}

Status CheckName(const std::string& name, const char* what) {
  if (name.size() > kNameBytesMax || name.find('\0') != std::string::npos) {
    return InvalidArgument(std::string("message with an unacceptable ") + what + " name of " +
                           std::to_string(name.size()) + " bytes");
  }
  return Status::Ok();
}

// One request's way back. Whoever handles it may go away with it: then it is answered all the same.
class PendingReply {
 public:
  explicit PendingReply(ReplyFunction reply) : reply_(std::move(reply)) {}
  PendingReply(const PendingReply&) = delete;
  PendingReply& operator=(const PendingReply&) = delete;
  ~PendingReply() { Give(Unavailable("whoever was to answer is gone; ask again")); }

  void Give(Result<wire::Reply> answer) {
    if (reply_) std::exchange(reply_, nullptr)(std::move(answer));
  }

 private:
  ReplyFunction reply_;
};

}  // namespace

PeerRouter::PeerRouter(StoreId store) : store_(std::move(store)) {}

void PeerRouter::SetSelf(NodeInstance self) { self_ = std::move(self); }

void PeerRouter::ClearSelf() { self_ = NodeInstance(); }

void PeerRouter::Handle(wire::Request::BodyCase kind, Handler handler) {
  handlers_[kind] = std::move(handler);
}

void PeerRouter::OnRequest(const wire::Request& request, ReplyFunction reply) {
  if (Status status = Check(request); !status.ok()) {
    reply(std::move(status));
    return;
  }
  const auto handler = handlers_.find(request.body_case());
  if (handler == handlers_.end()) {
    reply(InvalidArgument("message of kind " + std::to_string(request.body_case()) + ", which " +
                          self_.node.value + " does not know"));
    return;
  }
  // A copy: the handler may replace itself.
  const Handler handle = handler->second;
  const JobName job(request.header().job());
  auto pending = std::make_shared<PendingReply>(std::move(reply));
  handle(request, [this, job, pending](Result<wire::Reply> answer) {
    if (answer.ok() && !self_.node.empty()) {
      *answer->mutable_header() = MakeHeader(job, job.empty() ? Term() : fence(job).term);
    }
    pending->Give(std::move(answer));
  });
}

Status PeerRouter::Check(const wire::Request& request) {
  if (self_.node.empty()) return Unavailable("this node is not admitted to its cluster now");
  const wire::Header& header = request.header();
  const std::string sender =
      header.from().node_id() + " (start " + std::to_string(header.from().incarnation()) + ")";
  BACKSTAY_RETURN_IF_ERROR(CheckName(header.job(), "job"));
  BACKSTAY_RETURN_IF_ERROR(CheckName(header.from().node_id(), "node"));
  if (header.store_id() != store_.value) {
    return Stale("message from " + sender + " of another cluster: its metadata store is " +
                 header.store_id() + ", this one's " + store_.value);
  }
  if (!header.to().node_id().empty() && header.to().node_id() != self_.node.value) {
    return Stale("message for " + header.to().node_id() + " reached " + self_.node.value);
  }
  if (header.to().incarnation() != 0 &&
      Incarnation(header.to().incarnation()) != self_.incarnation) {
    return Stale("message for start " + std::to_string(header.to().incarnation()) + " of " +
                 self_.node.value + ", which is in start " +
                 std::to_string(self_.incarnation.value));
  }

  const JobName job(header.job());
  const wire::Request::BodyCase kind = request.body_case();
  const Generation generation(header.generation());
  const Term term(header.term());
  if (!job.empty() && IsFenced(kind)) {
    const JobFence& seen = fence(job);
    if (!fences_.contains(job) && fences_.size() >= kJobsMax) {
      return NoSpace(self_.node.value + " has heard of " + std::to_string(kJobsMax) + " jobs");
    }
    if (generation < seen.generation) {
      return Stale("message of generation " + std::to_string(generation.value) + " of job " +
                   job.value + ", which is in generation " + std::to_string(seen.generation.value));
    }
    if (IsLeaders(kind) && term < seen.term) {
      return Stale("message of a deposed leader (term " + std::to_string(term.value) + ") of job " +
                   job.value + ", whose leader has term " + std::to_string(seen.term.value));
    }
  }

  if (!header.from().node_id().empty()) {
    const Incarnation incarnation(header.from().incarnation());
    const NodeId from(header.from().node_id());
    if (!highest_incarnation_.contains(from) && highest_incarnation_.size() >= kNodesMax) {
      return NoSpace(self_.node.value + " has heard of " + std::to_string(kNodesMax) + " nodes");
    }
    Incarnation& highest = highest_incarnation_[from];
    if (incarnation < highest) {
      return Stale("message from " + sender + ", of which start " + std::to_string(highest.value) +
                   " has been seen");
    }
    highest = incarnation;
  }
  // Only a leader knows both numbers from the store; anyone's generation may be raised by whoever
  // speaks for it.
  if (!job.empty() && IsFenced(kind)) RaiseFence(job, generation, IsLeaders(kind) ? term : Term());
  return Status::Ok();
}

wire::Header PeerRouter::MakeHeader(const JobName& job, Term term) const {
  wire::Header header;
  header.set_store_id(store_.value);
  *header.mutable_from() = ToWire(self_);
  header.set_job(job.value);
  if (!job.empty()) header.set_generation(fence(job).generation.value);
  header.set_term(term.value);
  return header;
}

const JobFence& PeerRouter::fence(const JobName& job) const {
  static const JobFence kNone;
  const auto found = fences_.find(job);
  return found == fences_.end() ? kNone : found->second;
}

void PeerRouter::RaiseFence(const JobName& job, Generation generation, Term term) {
  JobFence& fence = fences_[job];
  if (generation > fence.generation) fence.generation = generation;
  if (term > fence.term) fence.term = term;
}

void PeerRouter::ForgetJob(const JobName& job) { fences_.erase(job); }

}  // namespace backstay::replication
