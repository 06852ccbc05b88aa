#include "tests/unit/client/fake_service.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/hash.h"
#include "base/slot_control.h"
#include "client/limits.h"
#include "store/manifest.h"

namespace backstay::tests {

namespace wire = client::wire;

namespace {

// Memory that two processes could share.
struct SharedMemory {
  explicit SharedMemory(uint64_t size) : size_bytes(size) {
    fd = ::memfd_create("fake-slot", MFD_CLOEXEC);
    BACKSTAY_CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(size)) == 0, "memfd");
    data =
        static_cast<std::byte*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  }
  ~SharedMemory() {
    ::munmap(data, size_bytes);
    ::close(fd);
  }
  SharedMemory(const SharedMemory&) = delete;

  uint64_t size_bytes;
  int fd = -1;
  std::byte* data = nullptr;
};

void SetStatus(wire::ServiceFrame* frame, const Status& status) {
  frame->mutable_status()->set_code(static_cast<uint32_t>(status.code()));
  frame->mutable_status()->set_message(status.message());
}

}  // namespace

struct FakeService::Slot {
  explicit Slot(uint64_t size)
      : geometry{.size_bytes = size, .chunk_bytes = kChunkBytes},
        data(size),
        control(geometry.ControlBytes()),
        writer(std::span(control.data, control.size_bytes), geometry) {}

  SlotGeometry geometry;
  SharedMemory data;
  SharedMemory control;
  SlotControlWriter writer;
  bool filling = false;
  bool mapped = false;  // As far as the service knows: a copy was started.
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t used_bytes = 0;
  store::ShardContents contents;
};

struct FakeService::Shard {
  uint64_t generation = 0;
  uint64_t step = 0;
  std::string bytes;
  std::string manifest;
  std::vector<Hash128> checksums;
};

struct FakeService::OpenShard {
  const Shard* shard = nullptr;
  std::unique_ptr<Slot> slot;
};

FakeService::FakeService() {
  char name[] = "/tmp/backstay-client-test-XXXXXX";
  BACKSTAY_CHECK(::mkdtemp(name) != nullptr, "mkdtemp");
  protocol_version_ = client::kLocalProtocolVersion;
  directory_ = name;
  socket_path_ = directory_ + "/socket";
  Start(false);
}

FakeService::~FakeService() {
  Stop();
  std::filesystem::remove_all(directory_);
}

void FakeService::Start(bool keep_state) {
  if (!keep_state) {
    const std::lock_guard lock(mutex_);
    slots_.clear();
    open_.clear();
    shards_.clear();
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path_.data(), socket_path_.size());
  listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  stop_fd_ = ::eventfd(0, EFD_CLOEXEC);
  ::unlink(socket_path_.c_str());
  BACKSTAY_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     ::listen(listener_, 16) == 0,
                 "listen");
  thread_ = std::thread([this] { Serve(); });
}

void FakeService::TakeSlotsBack() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, slot] : slots_) slot->filling = false;
}

void FakeService::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  BACKSTAY_CHECK(::write(stop_fd_, &one, sizeof one) == sizeof one, "wake");
  thread_.join();
  ::unlink(socket_path_.c_str());
  ::close(listener_);
  ::close(stop_fd_);
  const std::lock_guard lock(mutex_);
  for (auto& [id, slot] : slots_) slot->mapped = false;
}

void FakeService::Play(ClientBody on, Trick trick) {
  const std::lock_guard lock(mutex_);
  tricks_[on] = trick;
}
void FakeService::DamageChunks(std::set<uint32_t> chunks, bool reopen, bool forever) {
  const std::lock_guard lock(mutex_);
  damaged_ = std::move(chunks);
  reopen_ = reopen;
  damaged_forever_ = forever;
}
void FakeService::HoldChunks(bool hold) {
  const std::lock_guard lock(mutex_);
  hold_chunks_ = hold;
  if (hold) return;
  for (auto& [handle, open] : open_) {
    for (uint32_t i = 0; i < open->shard->checksums.size(); ++i) PublishChunk(*open, i);
  }
}
void FakeService::SetProtocolVersion(uint32_t version) {
  const std::lock_guard lock(mutex_);
  protocol_version_ = version;
}
void FakeService::SetNextAttempts(int count) {
  const std::lock_guard lock(mutex_);
  next_attempts_ = count;
}
void FakeService::AutoProtect(bool on) {
  const std::lock_guard lock(mutex_);
  auto_protect_ = on;
}
void FakeService::SendEvent(const wire::Event& event) {
  wire::ServiceFrame frame;
  *frame.mutable_event() = event;
  const std::lock_guard lock(mutex_);
  Send(connection_, frame, {});
}

bool FakeService::WaitFor(ClientBody kind, size_t count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(20), [&] {
    return static_cast<size_t>(std::count_if(
               received_.begin(), received_.end(),
               [&](const auto& frame) { return frame.body_case() == kind; })) >= count;
  });
}

std::vector<wire::ClientFrame> FakeService::Received(ClientBody kind) const {
  const std::lock_guard lock(mutex_);
  std::vector<wire::ClientFrame> frames;
  for (const auto& frame : received_) {
    if (frame.body_case() == kind) frames.push_back(frame);
  }
  return frames;
}

std::string FakeService::SealedBytes(uint64_t step) const {
  const std::lock_guard lock(mutex_);
  const auto found = shards_.find(step);
  return found == shards_.end() ? "" : found->second->bytes;
}

size_t FakeService::open_shards() const {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

size_t FakeService::filling_slots() const {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto& [id, slot] : slots_) count += slot->filling ? 1 : 0;
  return count;
}

bool FakeService::Send(int fd, const wire::ServiceFrame& frame,
                       const std::vector<int>& descriptors) {
  const std::string body = frame.SerializeAsString();
  std::string bytes(4, '\0');
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>(body.size() >> (8 * i));
  bytes += body;
  size_t sent = 0;
  while (sent < bytes.size()) {
    iovec piece = {.iov_base = bytes.data() + sent, .iov_len = bytes.size() - sent};
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    if (sent == 0 && !descriptors.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
    }
    const ssize_t got = ::sendmsg(fd, &message, MSG_NOSIGNAL);
    if (got <= 0) return false;
    sent += static_cast<size_t>(got);
  }
  return true;
}

void FakeService::Serve() {
  int fd = -1;
  std::string incoming;
  const auto hang_up = [&] {
    if (fd < 0) return;
    const std::lock_guard lock(mutex_);
    connection_ = -1;
    ::close(fd);
    fd = -1;
    incoming.clear();
    open_.clear();
    for (auto& [id, slot] : slots_) slot->mapped = slot->filling = false;
  };
  while (true) {
    pollfd fds[2] = {{.fd = stop_fd_, .events = POLLIN, .revents = 0},
                     {.fd = fd >= 0 ? fd : listener_, .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, -1);
    if (fds[0].revents != 0) break;
    if (fd < 0) {
      fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      const std::lock_guard lock(mutex_);
      connection_ = fd;
      continue;
    }
    char buffer[65536];
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    if (got <= 0) {
      hang_up();
      continue;
    }
    incoming.append(buffer, static_cast<size_t>(got));
    while (incoming.size() >= 4) {
      uint32_t size = 0;
      std::memcpy(&size, incoming.data(), 4);
      if (incoming.size() < 4 + size) break;
      wire::ClientFrame frame;
      BACKSTAY_CHECK(frame.ParseFromArray(incoming.data() + 4, static_cast<int>(size)),
                     "the client sent a malformed frame");
      incoming.erase(0, 4 + size);
      if (!ServeFrame(fd, frame)) {
        hang_up();
        break;
      }
    }
  }
  hang_up();
}

bool FakeService::ServeFrame(int fd, const wire::ClientFrame& frame) {
  const std::lock_guard lock(mutex_);
  received_.push_back(frame);
  changed_.notify_all();
  Trick trick = Trick::kNone;
  if (const auto found = tricks_.find(frame.body_case()); found != tricks_.end()) {
    trick = found->second;
    tricks_.erase(found);
  }
  if (trick == Trick::kDie) return false;
  if (trick == Trick::kIgnore) return true;
  if (trick == Trick::kGarbage || trick == Trick::kOversized) {
    const std::string bytes = trick == Trick::kGarbage
                                  ? std::string("\x04\0\0\0\xff\xff\xff\xff", 8)
                                  : std::string("\xff\xff\xff\xff", 4);
    // Hangs up as well: it has not handled the message, so it cannot go on.
    BACKSTAY_CHECK(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0, "send");
    return false;
  }
  if (trick == Trick::kHangUp) {
    wire::ServiceFrame farewell;
    SetStatus(&farewell, NoSpace("the test hangs up"));
    (void)Send(fd, farewell, {});
    return false;
  }
  if (trick == Trick::kRefuse) {
    wire::ServiceFrame refusal;
    refusal.set_request(frame.request());
    SetStatus(&refusal, Stale("refused by the test"));
    return Send(fd, refusal, {});
  }
  Answer answer = Handle(frame);
  if (trick == Trick::kNoDescriptors) answer.descriptors.clear();
  if (frame.request() == 0) return true;
  answer.frame.set_request(frame.request());
  if (!Send(fd, answer.frame, answer.descriptors)) return false;
  const bool sealed = frame.body_case() == ClientBody::kSeal && !answer.frame.has_status();
  if (!sealed || !auto_protect_) return true;
  for (const auto kind : {wire::Event::PROTECTED, wire::Event::COMMITTED}) {
    wire::ServiceFrame event;
    event.mutable_event()->set_kind(kind);
    event.mutable_event()->mutable_snapshot()->set_generation(generation_);
    event.mutable_event()->mutable_snapshot()->set_step(shards_.rbegin()->first);
    if (!Send(fd, event, {})) return false;
  }
  return true;
}

FakeService::Answer FakeService::Handle(const wire::ClientFrame& frame) {
  Answer answer;
  switch (frame.body_case()) {
    case ClientBody::kHello: {
      wire::HelloReply* hello = answer.frame.mutable_hello();
      hello->set_protocol_version(protocol_version_);
      hello->set_node_id("node-1");
      hello->set_incarnation(3);
      hello->set_service_version("test");
      hello->set_chunk_bytes(kChunkBytes);
      break;
    }
    case ClientBody::kRegister:
      registered_bytes_ = frame.register_().size_bytes();
      registered_shard_ = frame.register_().shard_id();
      answer.frame.mutable_register_()->set_chunk_bytes(kChunkBytes);
      answer.frame.mutable_register_()->set_reserved_bytes_local(2 * registered_bytes_);
      answer.frame.mutable_register_()->add_replica_nodes("node-2");
      break;
    case ClientBody::kResize:
      registered_bytes_ = frame.resize().size_bytes();
      for (auto& [id, slot] : slots_) BACKSTAY_CHECK(!slot->filling, "resize while filling");
      slots_.clear();
      break;
    case ClientBody::kBegin:
      HandleBegin(frame, &answer);
      break;
    case ClientBody::kStartCopy:
      HandleStartCopy(frame.start_copy(), &answer);
      break;
    case ClientBody::kSeal:
      HandleSeal(frame.seal(), &answer);
      break;
    case ClientBody::kAbandon:
      if (Slot* slot = FillingSlot(frame.abandon().slot_id(), frame.abandon().epoch()))
        slot->filling = false;
      break;
    case ClientBody::kSlotUnmapped:
      slots_.erase(frame.slot_unmapped().slot_id());
      break;
    case ClientBody::kNewAttempt:
      answer.frame.mutable_new_attempt()->set_uuid("attempt-" + std::to_string(next_id_++));
      break;
    case ClientBody::kReconfigure:
      FillDecision(answer.frame.mutable_decision());
      answer.frame.mutable_decision()->set_uuid(frame.reconfigure().uuid());
      answer.frame.mutable_decision()->set_shard_id(frame.reconfigure().shard_id());
      break;
    case ClientBody::kFetch:
      HandleFetch(frame.fetch(), &answer);
      break;
    case ClientBody::kFetchChunks:
      HandleFetchChunks(frame.fetch_chunks());
      break;
    case ClientBody::kReportBadChunks:
      HandleBadChunks(frame.report_bad_chunks(), &answer);
      break;
    case ClientBody::kCloseShard:
      open_.erase(frame.close_shard().handle());
      break;
    case ClientBody::kFinishRestore:
      HandleFinishRestore(frame.finish_restore(), &answer);
      break;
    case ClientBody::kSnapshotIndex:
      HandleIndex(&answer);
      break;
    case ClientBody::kNewestCommitted: {
      auto* newest = answer.frame.mutable_newest_committed();
      newest->set_any(!shards_.empty());
      if (shards_.empty()) break;
      newest->mutable_snapshot()->set_generation(shards_.rbegin()->second->generation);
      newest->mutable_snapshot()->set_step(shards_.rbegin()->first);
      break;
    }
    case ClientBody::kQuerySnapshot:
      answer.frame.mutable_query_snapshot()->set_state(
          shards_.contains(frame.query_snapshot().snapshot().step()) ? wire::SNAPSHOT_COMMITTED
                                                                     : wire::SNAPSHOT_UNKNOWN);
      break;
    case ClientBody::kFinish:
    case ClientBody::kFence:
    case ClientBody::kStepIsSound:
    case ClientBody::BODY_NOT_SET:
      break;
  }
  return answer;
}

void FakeService::HandleBegin(const wire::ClientFrame& frame, Answer* answer) {
  const uint64_t slot_bytes = RoundUp(registered_bytes_, kChunkBytes);
  auto found = slots_.begin();
  while (found != slots_.end() && found->second->filling) ++found;
  if (found == slots_.end()) {
    if (slots_.size() == 2) return SetStatus(&answer->frame, NoSpace("no slot is free"));
    found = slots_.emplace(slots_.size() + 1, std::make_unique<Slot>(slot_bytes)).first;
  }
  Slot& slot = *found->second;
  slot.filling = true;
  slot.step = frame.begin().step();
  slot.writer.Reset(++slot.epoch);
  wire::BeginReply* begin = answer->frame.mutable_begin();
  begin->set_slot_id(found->first);
  begin->set_size_bytes(slot_bytes);
  begin->set_control_bytes(slot.geometry.ControlBytes());
  begin->set_generation(generation_);
  begin->set_epoch(slot.epoch);
  begin->set_has_fds(!slot.mapped);
  if (!slot.mapped) answer->descriptors = {slot.data.fd, slot.control.fd};
}

FakeService::Slot* FakeService::FillingSlot(uint64_t slot_id, uint64_t epoch) {
  const auto found = slots_.find(slot_id);
  if (found == slots_.end() || !found->second->filling || found->second->epoch != epoch)
    return nullptr;
  return found->second.get();
}

void FakeService::HandleStartCopy(const wire::StartCopy& start, Answer* answer) {
  Slot* const filling = FillingSlot(start.slot_id(), start.epoch());
  if (filling == nullptr) return SetStatus(&answer->frame, InvalidArgument("no such slot"));
  Slot& slot = *filling;
  slot.mapped = true;
  Result<store::ShardContents> contents =
      store::DecodeContents(start.contents(), start.used_bytes());
  if (!contents.ok()) return SetStatus(&answer->frame, contents.status());
  slot.used_bytes = start.used_bytes();
  slot.contents = *contents;
}

void FakeService::HandleSeal(const wire::Seal& seal, Answer* answer) {
  Slot* const filling = FillingSlot(seal.slot_id(), seal.epoch());
  if (filling == nullptr) return SetStatus(&answer->frame, InvalidArgument("no such slot"));
  Slot& slot = *filling;
  slot.filling = false;
  auto shard = std::make_unique<Shard>();
  shard->generation = generation_;
  shard->step = slot.step;
  shard->bytes.assign(reinterpret_cast<const char*>(slot.data.data), slot.used_bytes);
  for (uint64_t chunk = 0; chunk < slot.geometry.ChunkCountOf(slot.used_bytes); ++chunk) {
    const std::string_view bytes =
        std::string_view(shard->bytes).substr(chunk * kChunkBytes, kChunkBytes);
    if (!slot.writer.IsReady(chunk) || slot.writer.Checksum(chunk) != HashBytes(bytes))
      return SetStatus(&answer->frame, Corrupt("chunk " + std::to_string(chunk)));
    shard->checksums.push_back(slot.writer.Checksum(chunk));
  }
  store::Manifest manifest;
  manifest.name = {
      JobName("job"), {Generation(generation_), Step(slot.step)}, ShardId(registered_shard_)};
  manifest.world_size = 1;
  manifest.size_bytes = slot.used_bytes;
  manifest.chunk_bytes = kChunkBytes;
  manifest.chunk_checksums = shard->checksums;
  manifest.contents = slot.contents;
  Result<std::string> encoded = store::EncodeManifest(manifest);
  if (!encoded.ok()) return SetStatus(&answer->frame, encoded.status());
  shard->manifest = *encoded;
  answer->frame.mutable_seal()->set_digest(store::ManifestDigest(*encoded).ToByteString());
  shards_[slot.step] = std::move(shard);
}

void FakeService::Open(const Shard& shard, bool whole, OpenShard* open) {
  open->shard = &shard;
  open->slot = std::make_unique<Slot>(RoundUp(shard.bytes.size(), kChunkBytes));
  open->slot->writer.Reset(1);
  if (!whole || hold_chunks_) return;
  for (uint32_t i = 0; i < shard.checksums.size(); ++i) PublishChunk(*open, i);
}

void FakeService::PublishChunk(OpenShard& open, uint32_t chunk) {
  const std::string_view bytes =
      std::string_view(open.shard->bytes).substr(uint64_t{chunk} * kChunkBytes, kChunkBytes);
  std::byte* target = open.slot->data.data + uint64_t{chunk} * kChunkBytes;
  if (open.slot->writer.IsReady(chunk)) return;
  std::memcpy(target, bytes.data(), bytes.size());
  if (damaged_.contains(chunk)) target[bytes.size() / 2] ^= std::byte{1};
  open.slot->writer.Publish(chunk, open.shard->checksums[chunk]);
}

void FakeService::HandleFetch(const wire::Fetch& fetch, Answer* answer) {
  const auto found = shards_.find(fetch.snapshot().step());
  if (found == shards_.end() || fetch.snapshot().generation() != found->second->generation)
    return SetStatus(&answer->frame, NotFound("no such snapshot"));
  auto open = std::make_unique<OpenShard>();
  Open(*found->second, fetch.whole(), open.get());
  wire::FetchReply* reply = answer->frame.mutable_fetch();
  reply->set_handle(next_id_);
  reply->set_size_bytes(open->slot->geometry.size_bytes);
  reply->set_control_bytes(open->slot->geometry.ControlBytes());
  reply->set_manifest(found->second->manifest);
  reply->set_digest(store::ManifestDigest(found->second->manifest).ToByteString());
  reply->set_local(true);
  answer->descriptors = {open->slot->data.fd, open->slot->control.fd};
  open_[next_id_++] = std::move(open);
}

void FakeService::HandleFetchChunks(const wire::FetchChunks& fetch) {
  const auto found = open_.find(fetch.handle());
  if (found == open_.end() || hold_chunks_) return;
  for (uint32_t i = 0; i < fetch.chunk_count(); ++i)
    PublishChunk(*found->second, fetch.first_chunk() + i);
}

void FakeService::HandleBadChunks(const wire::ReportBadChunks& report, Answer* answer) {
  const auto found = open_.find(report.handle());
  if (found == open_.end()) return SetStatus(&answer->frame, NotFound("no such shard"));
  for (const uint32_t chunk : report.chunks()) {
    BACKSTAY_CHECK(damaged_.contains(chunk), "a good chunk was reported");
    if (!damaged_forever_) damaged_.erase(chunk);
    if (reopen_) continue;
    found->second->slot->writer.Retract(chunk);
    PublishChunk(*found->second, chunk);
  }
  answer->frame.mutable_bad_chunks()->set_reopened(reopen_);
  if (reopen_) open_.erase(found);
}

void FakeService::FillDecision(wire::Decision* decision) {
  decision->set_generation(generation_ + 1);
  decision->set_attempt(1);
  decision->set_fresh(shards_.empty());
  decision->set_why("the newest");
  decision->set_base_committed(true);
  if (shards_.empty()) return;
  decision->mutable_base()->set_generation(shards_.rbegin()->second->generation);
  decision->mutable_base()->set_step(shards_.rbegin()->first);
  decision->set_base_root(std::string(16, 'r'));
}

void FakeService::HandleFinishRestore(const wire::FinishRestore& finish, Answer* answer) {
  auto* reply = answer->frame.mutable_finish_restore();
  if (finish.ok() && next_attempts_ == 0) {
    ++generation_;
    return reply->set_resumed(true);
  }
  if (next_attempts_ > 0) --next_attempts_;
  FillDecision(reply->mutable_next());
  reply->mutable_next()->set_uuid(finish.uuid());
  reply->mutable_next()->set_attempt(finish.attempt() + 1);
  reply->mutable_next()->set_shard_id(registered_shard_);
  // The older snapshot, as the planner would choose.
  if (shards_.size() > 1) reply->mutable_next()->mutable_base()->set_step(shards_.begin()->first);
}

void FakeService::HandleIndex(Answer* answer) {
  if (shards_.empty()) return SetStatus(&answer->frame, NotFound("nothing is committed"));
  auto* index = answer->frame.mutable_snapshot_index();
  index->mutable_snapshot()->set_generation(shards_.rbegin()->second->generation);
  index->mutable_snapshot()->set_step(shards_.rbegin()->first);
  index->add_manifests(shards_.rbegin()->second->manifest);
}

}  // namespace backstay::tests
