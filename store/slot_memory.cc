#include "store/slot_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <utility>

#include "base/os_error.h"
#include "base/units.h"
#include "store/numa.h"

namespace backstay::store {

namespace {

// A memory file and its mapping.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept
      : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile() {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  }

  // `huge`: from the reserved pool; `size_bytes` is a multiple of the huge page then.
  static Result<MappedFile> Create(const char* name, uint64_t size_bytes, bool huge);

  std::span<std::byte> bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  Result<UniqueFd> OpenReadOnly() const;
  // Asks for huge pages; whether the kernel may give them.
  bool AdviseHuge() const;
  // Touches every page: later uses never wait for the kernel.
  Status Prefault() const;
  // Size and seals are final from here on.
  Status Seal() const;

 private:
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

Result<MappedFile> MappedFile::Create(const char* name, uint64_t size_bytes, bool huge) {
  MappedFile file;
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
  file.fd_ = UniqueFd(::memfd_create(name, flags));
  if (!file.fd_.valid()) return OsError(errno, "make a memory file for a slot");
  if (::ftruncate(file.fd(), static_cast<off_t>(size_bytes)) != 0) {
    return OsError(errno, "size a slot to " + FormatBytes(size_bytes));
  }
  void* mapping = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  if (mapping == MAP_FAILED) return OsError(errno, "map a slot of " + FormatBytes(size_bytes));
  file.bytes_ = {static_cast<std::byte*>(mapping), size_bytes};
  return file;
}

Result<UniqueFd> MappedFile::OpenReadOnly() const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd());
  UniqueFd reopened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reopened.valid()) return OsError(errno, "open a slot's memory file read-only");
  return reopened;
}

bool MappedFile::AdviseHuge() const {
  if (::madvise(bytes_.data(), bytes_.size(), MADV_HUGEPAGE) != 0) return false;
  // "always within_size [advise] never deny force": the one in brackets is in force.
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string words;
  std::getline(setting, words);
  return words.find('[') != std::string::npos && words.find("[never]") == std::string::npos &&
         words.find("[deny]") == std::string::npos;
}

Status MappedFile::Prefault() const {
  if (::madvise(bytes_.data(), bytes_.size(), MADV_POPULATE_WRITE) == 0) return Status::Ok();
  if (errno != EINVAL) return OsError(errno, "touch a slot of " + FormatBytes(bytes_.size()));
  // Before Linux 5.14. fallocate() answers ENOSPC where a store into the mapping would be SIGBUS.
  if (::fallocate(fd(), 0, 0, static_cast<off_t>(bytes_.size())) != 0) {
    return OsError(errno, "allocate a slot of " + FormatBytes(bytes_.size()));
  }
  for (size_t at = 0; at < bytes_.size(); at += kSlotBytesMultiple) {
    *static_cast<volatile std::byte*>(&bytes_[at]) = std::byte{0};
  }
  return Status::Ok();
}

Status MappedFile::Seal() const {
  if (::fcntl(fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return OsError(errno, "seal a slot's size");
  }
  // A client that got a read-only descriptor shall not open it for writing by way of /proc. (One of
  // the same user can still ask for it explicitly; every read verifies.)
  if (::fchmod(fd(), S_IRUSR) != 0) return OsError(errno, "restrict a slot's memory file");
  return Status::Ok();
}

class MemfdSlotMemory : public SlotMemory {
 public:
  MemfdSlotMemory(SlotGeometry geometry, MappedFile data, MappedFile control, PageKind pages)
      : geometry_(geometry), data_(std::move(data)), control_(std::move(control)), pages_(pages) {}

  const SlotGeometry& geometry() const override { return geometry_; }
  std::span<std::byte> data() override { return data_.bytes(); }
  std::span<std::byte> control() override { return control_.bytes(); }
  int data_fd() const override { return data_.fd(); }
  int control_fd() const override { return control_.fd(); }
  PageKind pages() const override { return pages_; }

  Result<ReadOnlyFds> OpenReadOnly() const override {
    ReadOnlyFds fds;
    BACKSTAY_ASSIGN_OR_RETURN(fds.data, data_.OpenReadOnly());
    BACKSTAY_ASSIGN_OR_RETURN(fds.control, control_.OpenReadOnly());
    return fds;
  }

 private:
  const SlotGeometry geometry_;
  const MappedFile data_;
  const MappedFile control_;
  const PageKind pages_;
};

// Free pages of the reserved pool, if its page size is kHugePageBytes.
uint64_t FreeHugePageBytes() {
  std::ifstream meminfo("/proc/meminfo");
  uint64_t free_count = 0;
  uint64_t page_kib = 0;
  for (std::string key; meminfo >> key;) {
    if (key == "HugePages_Free:") meminfo >> free_count;
    if (key == "Hugepagesize:") meminfo >> page_kib;
  }
  return page_kib * kKiB == kHugePageBytes ? free_count * kHugePageBytes : 0;
}

class MemfdSlotMemoryFactory : public SlotMemoryFactory {
 public:
  Result<std::unique_ptr<SlotMemory>> Create(const SlotGeometry& geometry,
                                             int32_t numa_node) override {
    BACKSTAY_RETURN_IF_ERROR(geometry.Validate());
    BACKSTAY_RETURN_IF_ERROR(CheckNumaNode(numa_node));
    BACKSTAY_ASSIGN_OR_RETURN(
        MappedFile control,
        MappedFile::Create("backstay-control", ControlMemoryBytes(geometry), /*huge=*/false));
    BACKSTAY_RETURN_IF_ERROR(control.Prefault());
    BACKSTAY_RETURN_IF_ERROR(control.Seal());

    PageKind pages = PageKind::kSmall;
    BACKSTAY_ASSIGN_OR_RETURN(MappedFile data, CreateData(geometry.size_bytes, numa_node, pages));
    BACKSTAY_RETURN_IF_ERROR(data.Seal());
    return std::unique_ptr<SlotMemory>(
        std::make_unique<MemfdSlotMemory>(geometry, std::move(data), std::move(control), pages));
  }

 private:
  // Reserved huge pages if there are enough; somebody else may take them meanwhile, then normal
  // ones.
  static Result<MappedFile> CreateData(uint64_t size_bytes, int32_t numa_node, PageKind& pages) {
    if (size_bytes % kHugePageBytes == 0 && FreeHugePageBytes() >= size_bytes) {
      Result<MappedFile> huge = MappedFile::Create("backstay-slot", size_bytes, /*huge=*/true);
      if (huge.ok() && PreferNumaNode(huge->bytes(), numa_node).ok() && huge->Prefault().ok()) {
        pages = PageKind::kHuge;
        return huge;
      }
    }
    BACKSTAY_ASSIGN_OR_RETURN(MappedFile small,
                              MappedFile::Create("backstay-slot", size_bytes, /*huge=*/false));
    BACKSTAY_RETURN_IF_ERROR(PreferNumaNode(small.bytes(), numa_node));
    pages = small.AdviseHuge() ? PageKind::kAdvisedHuge : PageKind::kSmall;
    BACKSTAY_RETURN_IF_ERROR(small.Prefault());
    return small;
  }
};

}  // namespace

uint64_t SlotDataBytes(uint64_t size_bytes) {
  if (size_bytes == 0) return kSlotBytesMultiple;
  return RoundUp(size_bytes, size_bytes >= kHugePageBytes ? kHugePageBytes : kSlotBytesMultiple);
}

uint64_t ControlMemoryBytes(const SlotGeometry& geometry) {
  return RoundUp(geometry.ControlBytes(), kSlotBytesMultiple);
}

std::unique_ptr<SlotMemoryFactory> MakeMemfdSlotMemoryFactory() {
  return std::make_unique<MemfdSlotMemoryFactory>();
}

}  // namespace backstay::store
