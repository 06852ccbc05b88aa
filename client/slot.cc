#include "client/slot.h"

#include <sys/stat.h>

#include <cerrno>

#include "base/os_error.h"
#include "client/limits.h"

namespace backstay::client {
namespace {

// A file shorter than its mapping would kill the process at the first touch beyond its end.
Status CheckFileSize(int fd, uint64_t size_bytes) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return OsError(errno, "look at a slot's descriptor");
  if (static_cast<uint64_t>(info.st_size) >= size_bytes) return Status::Ok();
  return Corrupt("the service handed over " + std::to_string(info.st_size) +
                 " bytes of memory and says that they are " + std::to_string(size_bytes));
}

Result<FileIdentity> IdentityOf(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return OsError(errno, "look at a slot's descriptor");
  return FileIdentity{.device = info.st_dev, .inode = info.st_ino};
}

}  // namespace

Result<std::shared_ptr<const MappedSlot>> MapSlot(Reply& reply, uint64_t size_bytes,
                                                  uint64_t control_bytes, uint32_t chunk_bytes,
                                                  bool writable) {
  auto slot = std::make_shared<MappedSlot>();
  slot->geometry = {.size_bytes = size_bytes, .chunk_bytes = chunk_bytes};
  BACKSTAY_RETURN_IF_ERROR(slot->geometry.Validate());
  if (size_bytes > kShardBytesMax || control_bytes < slot->geometry.ControlBytes())
    return Corrupt("the service's slot and control page do not fit each other");
  if (reply.descriptors.size() != kFrameDescriptorsMax)
    return Corrupt("the service handed over a slot without its descriptors");
  const int data_fd = reply.descriptors[0].get();
  const int control_fd = reply.descriptors[1].get();
  if (size_bytes > 0) {
    BACKSTAY_RETURN_IF_ERROR(CheckFileSize(data_fd, size_bytes));
    BACKSTAY_ASSIGN_OR_RETURN(slot->file, IdentityOf(data_fd));
    slot->data = Mapping::Map(data_fd, size_bytes, writable);
    if (!slot->data.valid()) return OsError(errno, "map a slot of " + FormatBytes(size_bytes));
  }
  BACKSTAY_RETURN_IF_ERROR(CheckFileSize(control_fd, slot->geometry.ControlBytes()));
  slot->control = Mapping::Map(control_fd, slot->geometry.ControlBytes(), writable);
  if (!slot->control.valid()) return OsError(errno, "map a slot's control page");
  reply.descriptors.clear();
  BACKSTAY_RETURN_IF_ERROR(SlotControlView(slot->page(), slot->geometry).Validate());
  return std::shared_ptr<const MappedSlot>(std::move(slot));
}

Result<std::shared_ptr<const MappedSlot>> SlotCache::Take(Reply& reply,
                                                          const local::BeginReply& begin,
                                                          uint32_t chunk_bytes) {
  const std::lock_guard lock(mutex_);
  if (begin.has_fds) {
    slots_.erase(begin.slot_id);
    BACKSTAY_ASSIGN_OR_RETURN(
        auto slot, MapSlot(reply, begin.size_bytes, begin.control_bytes, chunk_bytes, true));
    slots_[begin.slot_id] = slot;
    return slot;
  }
  const auto found = slots_.find(begin.slot_id);
  if (found == slots_.end() || found->second->geometry.size_bytes != begin.size_bytes) {
    return Corrupt("the service handed over slot " + std::to_string(begin.slot_id) +
                   " without its descriptors, and it is not mapped here");
  }
  return found->second;
}

std::shared_ptr<const MappedSlot> SlotCache::FindMapped(const Reply& reply,
                                                        const SlotGeometry& geometry) {
  if (reply.descriptors.empty() || geometry.size_bytes == 0) return nullptr;
  const Result<FileIdentity> file = IdentityOf(reply.descriptors[0].get());
  if (!file.ok()) return nullptr;
  const std::lock_guard lock(mutex_);
  for (const auto& [slot_id, slot] : slots_) {
    if (slot->file == *file && slot->geometry.size_bytes == geometry.size_bytes &&
        slot->geometry.chunk_bytes == geometry.chunk_bytes) {
      return slot;
    }
  }
  return nullptr;
}

void SlotCache::Drop(uint64_t slot_id, std::function<void()> unmapped) {
  std::shared_ptr<const MappedSlot> slot;  // Let go of without the lock: `unmapped` may run here.
  const std::lock_guard lock(mutex_);
  const auto found = slots_.find(slot_id);
  if (found == slots_.end()) return;
  slot = std::move(found->second);
  slots_.erase(found);
  slot->when_unmapped =
      std::shared_ptr<void>(nullptr, [unmapped = std::move(unmapped)](void*) { unmapped(); });
}

void SlotCache::DropAll() {
  const std::lock_guard lock(mutex_);
  slots_.clear();
}

}  // namespace backstay::client
